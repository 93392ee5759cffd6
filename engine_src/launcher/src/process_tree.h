// Everything the program started, and nothing else, ends with it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <set>

namespace launcher {

class ProcessTree {
public:
    // Makes this process the one that orphans below it are handed to, so that a grandchild which left the
    // process group and lost its parent is still ours to find. Children that exist now are not touched.
    ProcessTree();

    // Collects orphans that ended. True when the program itself has; it is left uncollected, so that its number,
    // and that of its group, cannot pass to another process before we are done.
    bool has_ended(pid_t program);

    // Sends a signal to the program's group and to every orphan handed to us. A process deeper down is reached
    // when its parent has ended. Only own children are named by number, which no one else can take over.
    void signal_all(pid_t program, int signal);

    // After the program has ended: TERM, KILL after the grace time, until nothing of it is left.
    struct Sweep {
        size_t found = 0;  // processes that outlived the program
        size_t left = 0;   // still there at the end: stuck in the kernel, or beyond our rights
    };
    Sweep end_rest(pid_t program, int64_t kill_at_ns);

private:
    std::set<pid_t> living_orphans(pid_t program) const;

    std::set<pid_t> not_ours_;
};

}  // namespace launcher
