#include "inspect.h"

#include <fcntl.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "clocks.h"
#include "device_state.h"
#include "direct_io.h"
#include "engines.h"
#include "files.h"
#include "json_writer.h"
#include "storage.h"

namespace launcher {

std::string inspect_json(const Options & options) {
    const Storage storage = inspect_storage(options.dir, options.proc_root);
    const DirectIo direct = test_direct_io(options.dir);
    const OtherEngines others = find_engines(options.proc_root);
    const DeviceState state = read_device_state(options.proc_root, options.sys_root);

    utsname system{};
    if (uname(&system) != 0) {
        throw std::runtime_error(std::string("cannot ask for the system's name: ") + std::strerror(errno));
    }
    JsonWriter json;
    json.begin_object().field("machine", std::string(system.machine)).field("kernel", std::string(system.release));
    json.field("hostname", std::string(system.nodename)).field("page_bytes", sysconf(_SC_PAGESIZE));
    json.field("boot_id", read_value(options.proc_root + "/sys/kernel/random/boot_id"));
    json.field("unix_s", unix_s()).field("monotonic_ms", monotonic_ns() / 1000000);
    json.field("user", static_cast<int64_t>(geteuid()));
    json.key("dir").begin_object().field("path", storage.path).field("filesystem", storage.filesystem);
    json.field("fuse", storage.fuse).field("size_bytes", storage.size_bytes).field("free_bytes", storage.free_bytes);
    json.field("writable", direct.writable).end_object();
    json.key("direct_io").begin_object().field("works", direct.works).field("reason", direct.reason).end_object();
    json.key("other_engines").begin_array();
    for (const EngineProcess & engine : others.found) {
        json.begin_object().field("pid", engine.pid).field("name", engine.name).end_object();
    }
    json.end_array().field("sees_all_processes", others.complete);
    json.key("state");
    write_json(json, state);
    json.end_object();
    return json.text() + "\n";
}

}  // namespace launcher
