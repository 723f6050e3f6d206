// The C interface of a verilated module. The table of ports is filled in by build.rs.

#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "Model.h"
#include "verilated.h"
#ifdef LW_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

struct Port {
    const char* name;
    uint32_t bits;
    int input;
    void* (*address)(Model*);
};

const Port PORTS[] = {
    // PORTS
};

// A note of the design: its kind, its worker, and 384 bits.
const uint32_t NOTE_WORDS = 14;

#ifdef LW_TRACE
// A file that takes no more is told to whoever asks; Verilator's own ends the process.
class Waveform : public VerilatedVcdFile {
public:
    int error = 0;

    bool open(const std::string& name) override {
        descriptor = ::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        error = descriptor < 0 ? errno : 0;
        return descriptor >= 0;
    }

    void close() override {
        if (::close(descriptor) != 0 && error == 0) {
            error = errno;
        }
    }

    ssize_t write(const char* bytes, ssize_t count) override {
        if (error != 0) {
            return count;
        }
        const ssize_t written = ::write(descriptor, bytes, static_cast<size_t>(count));
        if (written >= 0 || errno == EINTR || errno == EAGAIN) {
            return written;
        }
        error = errno;
        return count;
    }

private:
    int descriptor = -1;
};
#endif

struct Instance {
    std::vector<uint32_t> notes;
    std::unique_ptr<VerilatedContext> context;
    std::unique_ptr<Model> model;
#ifdef LW_TRACE
    Waveform file;
    std::unique_ptr<VerilatedVcdC> waveform;
#endif
};

// The first failure since it was last asked for, of this thread's models.
thread_local std::string failure;
thread_local std::string told;
// Whose code runs.
thread_local Instance* running;

void note(const char* file, int line, const char* message) {
    if (failure.empty()) {
        failure = std::string(file ? file : "") + ":" + std::to_string(line) + ": " + (message ? message : "stopped");
    }
}

}  // namespace

void vl_stop(const char* file, int line, const char* hierarchy) VL_MT_UNSAFE {
    note(file, line, hierarchy && *hierarchy ? hierarchy : "an assertion failed");
}

void vl_fatal(const char* file, int line, const char*, const char* message) VL_MT_UNSAFE {
    note(file, line, message);
}

// What the design calls (`import "DPI-C"`) to tell what happens inside; lowest word first.
extern "C" void lw_note(uint32_t kind, uint32_t worker, const uint32_t* word) {
    running->notes.push_back(kind);
    running->notes.push_back(worker);
    running->notes.insert(running->notes.end(), word, word + NOTE_WORDS - 2);
}

#define LW_EXPORT extern "C" __attribute__((visibility("default")))

LW_EXPORT void* lw_new(uint64_t seed) {
    auto instance = new Instance;
    instance->context = std::make_unique<VerilatedContext>();
    instance->context->randReset(2);
    instance->context->randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
    instance->context->fatalOnError(false);
#ifdef LW_TRACE
    instance->context->traceEverOn(true);
#endif
    instance->model = std::make_unique<Model>(instance->context.get(), "top");
    return instance;
}

LW_EXPORT void lw_delete(void* handle) {
    auto instance = static_cast<Instance*>(handle);
#ifdef LW_TRACE
    if (instance->waveform) {
        instance->waveform->close();
    }
#endif
    instance->model->final();
    delete instance;
}

LW_EXPORT const char* lw_eval(void* handle) {
    running = static_cast<Instance*>(handle);
    running->model->eval();
    if (failure.empty()) {
        return nullptr;
    }
    told.swap(failure);
    failure.clear();
    return told.c_str();
}

LW_EXPORT uint32_t lw_notes(void* handle, const uint32_t** words) {
    auto instance = static_cast<Instance*>(handle);
    *words = instance->notes.data();
    return static_cast<uint32_t>(instance->notes.size() / NOTE_WORDS);
}
LW_EXPORT void lw_forget_notes(void* handle) { static_cast<Instance*>(handle)->notes.clear(); }

LW_EXPORT uint32_t lw_ports() { return sizeof PORTS / sizeof *PORTS; }
LW_EXPORT const char* lw_port_name(uint32_t number) { return PORTS[number].name; }
LW_EXPORT uint32_t lw_port_bits(uint32_t number) { return PORTS[number].bits; }
LW_EXPORT int lw_port_is_input(uint32_t number) { return PORTS[number].input; }
LW_EXPORT void* lw_port_data(void* handle, uint32_t number) {
    return PORTS[number].address(static_cast<Instance*>(handle)->model.get());
}

// Zero, what kept the file from being opened, or -1 if the model was built without waveforms.
LW_EXPORT int lw_trace(void* handle, const char* file) {
#ifdef LW_TRACE
    auto instance = static_cast<Instance*>(handle);
    instance->waveform = std::make_unique<VerilatedVcdC>(&instance->file);
    instance->model->trace(instance->waveform.get(), 99);
    instance->waveform->open(file);
    return instance->file.error;
#else
    (void)handle;
    (void)file;
    return -1;
#endif
}

// Writes what has been dumped; zero, or why the file has not taken all of it since it was opened.
LW_EXPORT int lw_flush(void* handle) {
#ifdef LW_TRACE
    auto instance = static_cast<Instance*>(handle);
    instance->waveform->flush();
    return instance->file.error;
#else
    (void)handle;
    return 0;
#endif
}

LW_EXPORT void lw_dump(void* handle, uint64_t time) {
#ifdef LW_TRACE
    static_cast<Instance*>(handle)->waveform->dump(time);
#else
    (void)handle;
    (void)time;
#endif
}
