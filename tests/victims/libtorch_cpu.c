/* Stands in for PyTorch's libtorch_cpu: an engine that runs the nodes of a task on a thread of its own, while the caller waits in
 * `execute`, or on the caller's thread. Functions have their mangled C++ names.
 * -DAT=n: where in a task the member lies whose address the engine gives. -DMUTE: it gives none. */
#include <pthread.h>
#include <stdlib.h>

#ifndef AT
#define AT 288
#endif

typedef void (*node)(void *);
struct task { char other[AT]; int exec_info; node run; void *argument; int done; struct task *next; };
struct shared { struct task *object; void *count; };

void *execute_with_graph_task(void **result, void *engine, const struct shared *task, void *root, void *inputs)
    __asm__("_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11InputBufferE");
void execute(void *engine, node run, void *argument, int on_caller) __asm__("_ZN5torch8autograd6Engine7executeEv");
static void thread_main(struct task *task) __asm__("_ZN5torch8autograd6Engine11thread_mainEv");

static __thread struct task *current;
#ifndef MUTE
void *exec_info(void) __asm__("_ZN5torch8autograd32get_current_graph_task_exec_infoEv");
void *exec_info(void) { return current ? &current->exec_info : NULL; }
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

void execute(void *engine, node run, void *argument, int on_caller) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void start(void);
    pthread_once(&once, start);
    struct task *object = calloc(1, sizeof *object);
    struct shared task = {object, NULL};
    void *result[2] = {NULL, object};
    object->run = run;
    object->argument = argument;
    void *returned = execute_with_graph_task(result, engine, &task, on_caller ? &task : NULL, engine);
    if (returned != result || result[0] != object || result[1] != object) abort();
    free(object);
}

void start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_init, NULL)) abort();
}
