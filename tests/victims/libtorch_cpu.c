/* Stands in for PyTorch's libtorch_cpu: an engine that runs the nodes of a task on a thread of its own, while the caller waits in
 * `execute`, or on the caller's thread. Functions have their mangled C++ names.
 * An operator of the forward pass takes a number with `forward`; the node of a task has the number that `execute` is given.
 * -DODD=n: nodes have their number and their count of references elsewhere, and n where the count was; of 1, only the count.
 * -DINTRUSIVE: a node counts its own references, as since PyTorch 2.13. -DAT=n: where in a task the member lies whose address the engine
 * gives. -DMUTE: it gives none. -DRENAMED: the engine has a name that nobody knows. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef AT
#define AT 288
#endif

#ifdef RENAMED
#define POINTER "S2_INS0_5OtherEE"
#elif defined INTRUSIVE
#define POINTER "N3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEE"
#else
#define POINTER "S2_INS0_4NodeEE"
#endif

typedef void (*node)(void *);
#ifdef INTRUSIVE
struct node { uint64_t vtable; int uses, weak; uint64_t number, topological, has_parent, thread, mutex; };
#else
struct node { uint64_t vtable, weak[2], number, topological, has_parent, thread; };
#endif
struct task { char other[AT]; int exec_info; struct node node; node run; void *argument; int done; struct task *next; };
struct shared { struct task *object; void *count; };

void *execute_with_graph_task(void **result, void *engine, const struct shared *task, void *root, void *inputs)
    __asm__("_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEE" POINTER "ONS0_11InputBufferE");
void execute(uint64_t number, node run, void *argument, int on_caller) __asm__("_ZN5torch8autograd6Engine7executeEv");
static void thread_main(struct task *task) __asm__("_ZN5torch8autograd6Engine11thread_mainEv");

static __thread struct task *current;
#ifndef MUTE
void *exec_info(void) __asm__("_ZN5torch8autograd32get_current_graph_task_exec_infoEv");
void *exec_info(void) { return current ? &current->exec_info : NULL; }
#endif

/* Numbers of nodes and threads. */
static __thread uint64_t counter, thread;
uint64_t peek(void) __asm__("_ZN2at15sequence_number4peekEv");
uint64_t peek(void) { return counter; }
uint64_t thread_id(void) __asm__("_ZN2at14RecordFunction15currentThreadIdEv");
uint64_t thread_id(void) {
    static uint64_t threads;
    if (!thread) thread = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    return thread;
}
uint64_t forward(void) { return counter++; }

#ifdef ODD
static struct { uint64_t vtable; int other[2], uses, weak; } count = {0, {ODD, 1}, 1, 1};
#else
static struct { uint64_t vtable; int uses, weak; } count = {0, 1, 1};
#endif
#ifdef INTRUSIVE
struct node **get_current_node(struct node **result) __asm__("_ZN5torch8autograd16get_current_nodeEv");
struct node **get_current_node(struct node **result) {
    *result = current ? &current->node : NULL;
    if (current) __atomic_add_fetch(&current->node.uses, 1, __ATOMIC_RELAXED);
    return result;
}
#else
struct shared_node { struct node *object; void *count; };
struct shared_node *get_current_node(struct shared_node *result) __asm__("_ZN5torch8autograd16get_current_nodeEv");
struct shared_node *get_current_node(struct shared_node *result) {
    *result = (struct shared_node){current ? &current->node : NULL, current ? &count : NULL};
    if (current) __atomic_add_fetch(&count.uses, 1, __ATOMIC_RELAXED);
    return result;
}
#endif
#ifdef ODD
int uses(void) { return count.other[0]; }
#else
int uses(void) { return count.uses; }
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct task *queue;

__attribute__((noinline)) static void thread_main(struct task *task) {
    struct task *before = current;
    current = task;
    task->run(task->argument);
    current = before;
}

static void *thread_init(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!queue) pthread_cond_wait(&changed, &lock);
        struct task *task = queue;
        queue = task->next;
        pthread_mutex_unlock(&lock);
        thread_main(task);
        pthread_mutex_lock(&lock);
        task->done = 1;
        pthread_cond_broadcast(&changed);
    }
    return nothing;
}

void *execute_with_graph_task(void **result, void *engine, const struct shared *task, void *root, void *inputs) {
    struct task *object = task->object;
    *result = object;
    if (root) {
        thread_main(object);
        return result;
    }
    pthread_mutex_lock(&lock);
    object->next = queue;
    queue = object;
    pthread_cond_broadcast(&changed);
    while (!object->done) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return (char *)result + (engine != inputs);
}

void execute(uint64_t number, node run, void *argument, int on_caller) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void start(void);
    pthread_once(&once, start);
    struct task *object = calloc(1, sizeof *object);
    struct shared task = {object, NULL};
    void *result[2] = {NULL, object};
    object->run = run;
    object->argument = argument;
#if ODD > 1
    object->node = (struct node){.number = 1, .topological = 1, .has_parent = 0x7f, .thread = number << 40};
#else
    object->node = (struct node){.number = number, .topological = 1, .has_parent = 1, .thread = thread_id()};
#endif
#ifdef INTRUSIVE
    object->node.uses = 1;
    object->node.weak = 1 << 31 | 1; /* it has a Python object, too */
#endif
    void *engine = &count;
    void *returned = execute_with_graph_task(result, engine, &task, on_caller ? &task : NULL, engine);
#ifdef INTRUSIVE
    count.uses += object->node.uses - 1;
#endif
    if (returned != result || result[0] != object || result[1] != object) abort();
    free(object);
}

void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_init, NULL)) abort();
}
