#include "engines.h"

#include <unistd.h>

#include "files.h"

namespace launcher {

namespace {

std::string base_name(const std::string & path) {
    return path.substr(path.rfind('/') + 1);
}

bool has_ended(const std::string & stat) {
    const size_t name_end = stat.rfind(')');  // "12 (name) S ..."
    return name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] == 'Z';
}

// The name of the program, when it is an engine's; else empty.
std::string engine_name(const std::string & process_dir) {
    // The kernel's name is cut to 15 characters, and the first argument can be anything: either will do.
    const std::string arguments = read_text(process_dir + "/cmdline").value_or("");
    const std::string first = base_name(arguments.substr(0, arguments.find('\0')));
    const std::string kernels = read_value(process_dir + "/comm").value_or("");
    if (!is_engine_name(first) && !is_engine_name(kernels)) {
        return {};
    }
    if (has_ended(read_text(process_dir + "/stat").value_or(""))) {
        return {};
    }
    return is_engine_name(first) ? first : kernels;
}

}  // namespace

bool is_engine_name(std::string_view name) {
    for (const std::string_view whole : {"moe-engine", "ollama"}) {
        if (name == whole) {
            return true;
        }
    }
    for (const std::string_view beginning : {"llama-", "bmoe-", "epq-", "mlc_"}) {
        if (name.substr(0, beginning.size()) == beginning) {
            return true;
        }
    }
    return false;
}

OtherEngines find_engines(const std::string & proc_root) {
    OtherEngines engines;
    engines.complete = read_text(proc_root + "/1/stat").has_value();
    for (const std::string & entry : list_names(proc_root, "")) {
        const auto pid = parse_int(entry);
        if (!pid || *pid == getpid()) {
            continue;
        }
        const std::string name = engine_name(proc_root + "/" + entry);
        if (!name.empty()) {
            engines.found.push_back({*pid, name});
        }
    }
    return engines;
}

}  // namespace launcher
