// Functions of many shapes that call one another at random through pointers, down to a given depth, where the probe is
// called. Compiled several times with different options, each time into its own library.

#include <alloca.h>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct Run;
typedef void (*Shape)(Run *, int);

struct Run {
    void (*probe)();
    const Shape *shapes;
    uint64_t count;
    uint64_t random;
};

#define OUT_OF_LINE __attribute__((noinline))

static inline uint64_t draw(Run *run) {
    run->random ^= run->random << 13;
    run->random ^= run->random >> 7;
    run->random ^= run->random << 17;
    return run->random;
}

static inline void go_on(Run *run, int depth) {
    if (depth <= 0)
        run->probe();
    else
        run->shapes[draw(run) % run->count](run, depth - 1);
}

static inline void keep(void *pointer) { asm volatile("" : : "r"(pointer) : "memory"); }

extern "C" {

void shape_small(Run *run, int depth) {
    go_on(run, depth);
    keep(run);
}

void shape_tail_call(Run *run, int depth) { go_on(run, depth); }

void shape_big_frame(Run *run, int depth) {
    char buffer[9000];
    keep(buffer);
    go_on(run, depth);
    keep(buffer);
}

void shape_alloca(Run *run, int depth) {
    char *buffer = (char *)alloca(16 + draw(run) % 700);
    buffer[0] = 1;
    keep(buffer);
    go_on(run, depth);
    keep(buffer);
}

void shape_realigned(Run *run, int depth) {
    __attribute__((aligned(64))) char buffer[192];
    keep(buffer);
    go_on(run, depth);
    keep(buffer);
}

void shape_realigned_alloca(Run *run, int depth) {
    __attribute__((aligned(128))) char buffer[128];
    char *more = (char *)alloca(32 + draw(run) % 300);
    keep(buffer);
    keep(more);
    go_on(run, depth);
    keep(buffer);
    keep(more);
}

void shape_many_registers(Run *run, int depth) {
    volatile uint64_t source[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    uint64_t a = source[0], b = source[1], c = source[2], d = source[3], e = source[4], f = source[5];
    uint64_t g = source[6], h = source[7], i = source[8];
    go_on(run, depth);
    source[0] = a + b * c + d * e + f * g + h * i;
    source[1] = a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ i;
}

void shape_cleanup(Run *run, int depth) {
    std::string text(20 + draw(run) % 100, 'x');
    std::vector<int> numbers(draw(run) % 50 + 1);
    keep(&text[0]);
    go_on(run, depth);
    keep(&numbers[0]);
}

void shape_catch(Run *run, int depth) {
    try {
        std::string text(30, 'y');
        go_on(run, depth);
        if (draw(run) % 4 == 0)
            throw std::runtime_error(text);
    } catch (const std::exception &error) {
        keep((void *)error.what());
    }
}

// The rest of the stack is called from a catch block, while an exception is being handled.
void shape_in_catch(Run *run, int depth) {
    try {
        throw depth;
    } catch (int caught) {
        go_on(run, caught);
    }
}

static OUT_OF_LINE void with_arguments(Run *run, int depth, int count, ...) {
    va_list arguments;
    va_start(arguments, count);
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += va_arg(arguments, double);
    va_end(arguments);
    keep(&sum);
    go_on(run, depth);
    keep(&sum);
}

void shape_variadic(Run *run, int depth) {
    with_arguments(run, depth, 10, 1., 2., 3., 4., 5., 6., 7., 8., 9., 10.);
    keep(run);
}

static OUT_OF_LINE uint64_t nine(Run *run, int depth, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                 uint64_t f, uint64_t g) {
    go_on(run, depth);
    return a + b + c + d + e + f + g;
}

void shape_stack_arguments(Run *run, int depth) {
    volatile uint64_t sum = nine(run, depth, 1, 2, 3, 4, 5, 6, 7) + nine(run, 0, 1, 2, 3, 4, 5, 6, 7);
    (void)sum;
}

struct Base {
    virtual ~Base() {}
    virtual void call(Run *run, int depth) = 0;
};
struct One : Base {
    char padding[100];
    void call(Run *run, int depth) override {
        keep(padding);
        go_on(run, depth);
        keep(padding);
    }
};
struct Second {
    virtual ~Second() {}
    virtual void other(Run *run, int depth) { go_on(run, depth); }
};
struct Two : Second, Base {
    void call(Run *run, int depth) override {
        go_on(run, depth);
        keep(this);
    }
};

void shape_virtual(Run *run, int depth) {
    One one;
    Two two;
    Base *base = draw(run) % 2 ? (Base *)&one : (Base *)&two;
    keep(&base);
    base->call(run, depth);
    keep(base);
}

void shape_function(Run *run, int depth) {
    std::function<void()> function = [run, depth, text = std::string(40, 'z')] {
        go_on(run, depth);
        keep((void *)text.data());
    };
    keep(&function);
    function();
}

static __thread Run *sorting;
static __thread int sorting_depth;

static int compare_once(const void *left, const void *right) {
    if (sorting) {
        Run *run = sorting;
        sorting = nullptr;
        go_on(run, sorting_depth);
    }
    return *(const int *)left - *(const int *)right;
}

void shape_qsort(Run *run, int depth) {
    int numbers[40];
    for (int i = 0; i < 40; i++)
        numbers[i] = (int)(draw(run) % 1000);
    sorting_depth = depth;
    sorting = run;
    qsort(numbers, 40, sizeof(int), compare_once);
    keep(numbers);
}

void shape_destructor(Run *run, int depth) {
    struct AtEnd {
        Run *run;
        int depth;
        ~AtEnd() { go_on(run, depth); }
    } at_end = {run, depth};
    keep(&at_end);
}

// Called from the landing pad of a thrown exception.
void shape_unwinding(Run *run, int depth) {
    struct AtEnd {
        Run *run;
        int depth;
        ~AtEnd() { go_on(run, depth); }
    };
    try {
        AtEnd at_end = {run, depth};
        throw 1;
    } catch (int) {
    }
}

// Code for signals to interrupt: library calls, linkage stubs, exceptions, prologues.
void work(uint64_t rounds) {
    Run run = {[] {}, nullptr, 0, rounds | 1};
    static const Shape shapes[] = {shape_realigned, shape_realigned_alloca, shape_alloca, shape_cleanup, shape_catch,
                                   shape_function, shape_variadic, shape_many_registers, shape_stack_arguments,
                                   shape_qsort, shape_unwinding, shape_in_catch, shape_virtual, shape_big_frame};
    run.shapes = shapes;
    run.count = sizeof shapes / sizeof *shapes;
    static __thread char from[5000], to[5000];
    for (uint64_t i = 0; i < rounds; i++) {
        go_on(&run, 6);
        void *blocks[8];
        for (int k = 0; k < 8; k++)
            blocks[k] = malloc(draw(&run) % 3000 + 1);
        for (int k = 0; k < 8; k++)
            free(blocks[k]);
        memcpy(to, from, draw(&run) % sizeof to);
        memset(from, (int)i, draw(&run) % sizeof from);
        keep((void *)(uintptr_t)strlen(from));
        char text[64];
        keep(text + snprintf(text, sizeof text, "%d %s %f", (int)i, "words", (double)i));
    }
}

// Gives the probe the frame pointer at which a walk along frame pointers begins.
void (*framed_probe)(void *);

void probe_with_frame() {
    framed_probe(__builtin_frame_address(0));
    keep(&framed_probe);
}

extern const Shape all_shapes[] = {
    shape_small,     shape_tail_call, shape_big_frame,       shape_alloca,  shape_realigned, shape_realigned_alloca,
    shape_many_registers, shape_cleanup, shape_catch,        shape_in_catch, shape_variadic, shape_stack_arguments,
    shape_virtual,   shape_function,  shape_qsort,           shape_destructor, shape_unwinding,
};
extern const uint64_t shape_count = sizeof all_shapes / sizeof *all_shapes;
}
