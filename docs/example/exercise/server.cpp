// A small inference server with five leaks. docs/ten-steps.md finds them. It handles made-up requests; a GPU is not needed.
#include "culeak.h"
#include <cstdlib>
#include <map>
#include <string>

using Address = unsigned long long;
using Stream = void *;
extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(Address *out, size_t bytes);
int cuMemFree_v2(Address address);
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
int cuMemFreeHost(void *memory);
int cuStreamCreate(Stream *out, unsigned flags);
int cuStreamDestroy_v2(Stream stream);
}

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;

// The weights are replaced when a new version of the model arrives.
struct Model {
    Address weights = 0;
    void load() { cuMemAlloc_v2(&weights, 64 * MIB); }
    void unload() { cuMemFree_v2(weights); }
};

// The last 16 prompts.
struct PromptCache {
    Address prompts[16] = {};
    size_t next = 0;
    void add() {
        Address &oldest = prompts[next++ % 16];
        if (oldest) cuMemFree_v2(oldest);
        cuMemAlloc_v2(&oldest, 2 * MIB);
    }
    void clear() {
        for (Address prompt : prompts) cuMemFree_v2(prompt);
    }
};

// A page-locked buffer for results, which grows with the largest one.
struct Staging {
    void *buffer = nullptr;
    size_t bytes = 0;
    void reserve(size_t needed) {
        if (needed <= bytes) return;
        cuMemHostAlloc(&buffer, bytes = needed, 0);
    }
    void release() { cuMemFreeHost(buffer); }
};

Model model;
PromptCache prompt_cache;
Staging staging;
std::map<std::string, Address> sessions;

// The key and value cache of a user, kept for the next request of the same session.
static Address session(const std::string &key) {
    Address &cache = sessions[key];
    if (!cache) cuMemAlloc_v2(&cache, 1 * MIB);
    return cache;
}

static bool decode(int request) {
    Address logits = 0;
    cuMemAlloc_v2(&logits, 512 * KIB);
    if (request % 5 == 0) return false; // the user has gone away
    // … the text is made here …
    cuMemFree_v2(logits);
    return true;
}

static void handle(int request) {
    std::string user = "user" + std::to_string(request % 4);
    session(user + "/" + std::to_string(request));
    prompt_cache.add();
    Stream stream = nullptr;
    cuStreamCreate(&stream, 0);
    staging.reserve(256 * KIB * (1 + request % 8));
    decode(request);
}

int main(int, char **argv) {
    void *context = nullptr;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    for (int version = 0; version < 10; version++) {
        model.load();
        for (int request = 0; request < 20; request++) handle(20 * version + request);
        culeak_mark(version == 1 ? "warm" : "idle");
    }
    culeak_mark("done");
    if (argv[1]) quick_exit(0); // `server quick` ends at once, as many servers do: nothing is cleaned up
    model.unload();
    prompt_cache.clear();
    staging.release();
    for (auto &entry : sessions) cuMemFree_v2(entry.second);
    return 0;
}
