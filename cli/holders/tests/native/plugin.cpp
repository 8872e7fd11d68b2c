// A library that is unloaded again. Its class is unknown afterwards, and what its globals held is unreached.

#include <vector>

struct Base {
    virtual ~Base() {}
};
struct OfPlugin : Base {
    void *block;
};
static std::vector<void *> *of_plugin;

extern "C" Base *make(void *held, void *lost) {
    of_plugin = new std::vector<void *>;
    of_plugin->push_back(lost);
    OfPlugin *made = new OfPlugin;
    made->block = held;
    return made;
}
