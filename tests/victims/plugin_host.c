/* Loads plugins that leak, and unloads them. Arguments: paths of plugins. */
#include "victim.h"
#include <link.h>

static uintptr_t run_and_close(const char *path, int flags) {
    void *plugin = dlopen(path, flags);
    if (!plugin) printf("%s\n", dlerror());
    REQUIRE(plugin);
    struct link_map *map;
    REQUIRE(!dlinfo(plugin, RTLD_DI_LINKMAP, &map));
    uintptr_t base = map->l_addr;
    CUresult (*run)(void) = dlsym(plugin, "run_plugin");
    REQUIRE(run);
    OK(run());
    REQUIRE(!dlclose(plugin));
    return base;
}

/* one after the other, each at the address of the one before */
static void in_turn(void) {
    start_cuda();
    uintptr_t first = 0;
    for (char **path = arguments; *path; path++) {
        uintptr_t base = run_and_close(*path, RTLD_NOW | RTLD_LOCAL);
        if (!first) first = base;
        printf("%s\n", base == first ? "same place" : "elsewhere");
    }
}

/* one plugin 300 times */
static void again_and_again(void) {
    start_cuda();
    for (int i = 0; i < 300; i++) run_and_close(arguments[0], RTLD_NOW | RTLD_LOCAL);
}

static void deepbind(void) {
    start_cuda();
    run_and_close(arguments[0], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    leak(5);
}

/* The plugin's memory comes from functions that are not hooked, and the program frees it. */
static void freed_for_a_blind_spot(void) {
    start_cuda();
    leak(5);
    void *plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    REQUIRE(plugin);
    CUresult (*run)(void) = dlsym(plugin, "run_plugin");
    CUdeviceptr *address = dlsym(plugin, "plugin_address");
    REQUIRE(run && address);
    OK(run());
    OK(cuMemFree_v2(*address));
}

/* The other way round: the driver reuses the address of a block whose free was not recorded. */
static void freed_by_a_blind_spot(void) {
    start_cuda();
    void *plugin = dlopen(arguments[0], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    REQUIRE(plugin);
    CUresult (*give_back)(CUdeviceptr) = dlsym(plugin, "plugin_free");
    REQUIRE(give_back);
    CUdeviceptr before = leak(512);
    OK(give_back(before));
    REQUIRE(leak(512) == before);
}

/* In a new link-map namespace, with its own copy of every library. */
static void own_namespace(void) {
    start_cuda();
    void *plugin = dlmopen(LM_ID_NEWLM, arguments[0], RTLD_NOW);
    if (!plugin) printf("%s\n", dlerror());
    REQUIRE(plugin);
    CUresult (*run)(void) = dlsym(plugin, "run_plugin");
    REQUIRE(run);
    printf("plugin: %d\n", run());
    leak(5);
}

MAIN(BEHAVIOUR(in_turn), BEHAVIOUR(again_and_again), BEHAVIOUR(deepbind), BEHAVIOUR(freed_for_a_blind_spot), BEHAVIOUR(freed_by_a_blind_spot), BEHAVIOUR(own_namespace))
