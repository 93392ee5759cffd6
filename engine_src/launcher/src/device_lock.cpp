#include "device_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "clocks.h"
#include "detach.h"
#include "errors.h"
#include "file_lock.h"
#include "files.h"
#include "json_reader.h"
#include "json_writer.h"
#include "lease.h"
#include "print.h"
#include "signals.h"

namespace launcher {

namespace {

constexpr int64_t ms_ns = 1000000;
constexpr size_t longest_notice = 65536;

// What a holder has written into the lock file.
struct Holder {
    std::string text;  // all of it, one JSON object
    std::string token;
    std::optional<int64_t> pid;
    std::optional<int64_t> since_ms;
};

std::string_view member(const std::map<std::string, std::string_view> & members, const char * name) {
    const auto found = members.find(name);
    return found == members.end() ? std::string_view() : found->second;
}

// Empty where there is none.
std::string token_of(std::string_view owner) {
    const auto members = read_object(owner);
    return members ? read_string(member(*members, "token")).value_or("") : "";
}

// Nothing where there is none, or it makes no sense: a file that anyone may write can contain anything.
std::optional<Holder> read_holder(const std::string & path) {
    const UniqueFd fd = open_lock(path);
    if (!fd) {
        return std::nullopt;
    }
    std::string buffer(longest_notice, '\0');
    const std::string text = trim(read_again(fd.get(), buffer.data(), buffer.size()));
    const auto members = read_object(text);
    if (!members) {
        return std::nullopt;
    }
    return Holder{text, token_of(member(*members, "owner")), parse_int(member(*members, "pid")),
                  parse_int(member(*members, "since_monotonic_ms"))};
}

void write_holder(JsonWriter & json, const std::optional<Holder> & holder) {
    json.key("by");
    if (holder) {
        json.raw(holder->text);
    } else {
        json.null();
    }
}

void print_held(std::optional<int64_t> pid) {
    JsonWriter json;
    json.begin_object().field("held", true).field("pid", pid).end_object();
    print(json.text() + "\n");
}

void print_held_by_another(const std::optional<Holder> & holder) {
    const int64_t now_ms = monotonic_ns() / ms_ns;
    std::optional<double> age_s;
    if (holder && holder->since_ms && *holder->since_ms <= now_ms) {
        age_s = static_cast<double>(now_ms - *holder->since_ms) / 1e3;
    }
    JsonWriter json;
    json.begin_object().field("held", false);
    write_holder(json, holder);
    json.field("age_s", age_s).end_object();
    print(json.text() + "\n");
}

// The lock file's content, for as long as we have the lock.
class Notice {
public:
    Notice(const FileLock & lock, std::string path, const std::string & owner) : lock_(lock), path_(std::move(path)) {
        JsonWriter json;
        json.begin_object().key("owner").raw(owner).field("pid", static_cast<int64_t>(getpid()));
        json.field("since_unix_s", unix_s()).field("since_monotonic_ms", monotonic_ns() / ms_ns).end_object();
        text_ = json.text() + "\n";
        show();
    }
    Notice(const Notice &) = delete;
    Notice & operator=(const Notice &) = delete;
    ~Notice() { clear(); }

    void show() {
        clear();
        errno = ENOSPC;  // should only a part find room
        if (pwrite(lock_.fd(), text_.data(), text_.size(), 0) != static_cast<ssize_t>(text_.size())) {
            const std::string why = std::strerror(errno);
            clear();
            throw OutputError("cannot write the owner into the lock " + path_ + ": " + why);
        }
    }
    void clear() {
        // Should it fail, what stays is not believed by anyone: the lock is free.
        const int ignored = ftruncate(lock_.fd(), 0);
        static_cast<void>(ignored);
    }

private:
    const FileLock & lock_;
    std::string path_;
    std::string text_;
};

// For as long as the campaign lives, or a cell of it is still running or being ended.
void keep(Signals & signals, Lease & lease, const std::string & while_lock, Notice & notice) {
    constexpr int64_t look_ns = 250 * ms_ns;
    while (!signals.wait_until(lease.due_ns() + 1)) {
        if (!lease.over()) {
            continue;
        }
        if (is_locked(while_lock)) {
            signals.wait_until(monotonic_ns() + look_ns);
            continue;
        }
        // The campaign may come back at this very moment. It renews the lease and then looks whether the notice is
        // still there; so the notice goes first, and then the lease is looked at once more.
        notice.clear();
        if (lease.over()) {
            return;
        }
        notice.show();
    }
}

bool is_alive(std::optional<int64_t> pid) {
    return pid && *pid > 1 && (kill(static_cast<pid_t>(*pid), 0) == 0 || errno == EPERM);
}

// The number of the process that has the lock already, for the same campaign, whose lease is renewed. The notice alone
// does not say so: one that was killed leaves it behind.
std::optional<int64_t> held_for(const std::string & token, const Options & options) {
    const auto is_ours = [&](const std::optional<Holder> & holder) {
        return holder && holder->token == token && is_alive(holder->pid);
    };
    if (!is_locked(options.lock) || !is_ours(read_holder(options.lock))) {
        return std::nullopt;
    }
    if (const int error = write_beat(options.beat_file)) {
        throw OutputError("cannot write " + options.beat_file + ": " + std::strerror(error));
    }
    const auto after = read_holder(options.lock);  // see `keep`
    return is_ours(after) ? after->pid : std::nullopt;
}

// Returns the exit code.
int become_holder(const Options & options, const std::string & token, Detachment & detachment) {
    Signals signals(Signals::Parent::ignored);
    Lease lease(options.beat_file, *options.lease_s);
    constexpr int attempts = 3;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        if (const auto pid = held_for(token, options)) {
            print_held(pid);
            return exit_ok;
        }
        if (const auto lock = FileLock::take(options.lock)) {
            require_own_content(lock->fd(), options.lock);
            Notice notice(*lock, options.lock, options.owner);
            detachment.ready(options.log);
            keep(signals, lease, options.while_lock, notice);
            return exit_ok;
        }
        const auto holder = read_holder(options.lock);
        if (holder && holder->token != token) {
            break;
        }
    }
    print_held_by_another(read_holder(options.lock));
    return exit_held;
}

}  // namespace

void require_own_content(int fd, const std::string & path) {
    std::string buffer(longest_notice + 1, '\0');
    const ssize_t got = pread(fd, buffer.data(), buffer.size(), 0);
    if (got < 0) {
        throw OutputError("cannot read the lock " + path + ": " + std::strerror(errno));
    }
    buffer.resize(static_cast<size_t>(got));
    // zeros: what a power cut may leave of a notice
    if (buffer.size() <= longest_notice) {
        const auto members = read_object(trim(buffer));
        if (buffer.find_first_not_of('\0') == std::string::npos || (members && members->count("owner") != 0)) {
            return;
        }
    }
    throw std::runtime_error(path +
                             " is not a device's lock but a file with other content, which is left as it is; "
                             "name another file (the harness: target.device_lock), or remove this one if nobody "
                             "needs it");
}

int hold(const Options & options) {
    constexpr size_t longest_owner = 32768;
    const std::string token = token_of(options.owner);
    if (token.empty() || options.owner.size() > longest_owner) {
        throw UsageError("--owner takes a JSON object of at most 32 KiB with a text \"token\"");
    }
    Detachment detachment;
    if (detachment.in_child()) {
        return become_holder(options, token, detachment);
    }
    if (!detachment.wait_until_ready()) {
        return detachment.exit_code();
    }
    print_held(detachment.child());
    return exit_ok;
}

int release(const Options & options) {
    constexpr int64_t patience_ns = 5000 * ms_ns;
    constexpr int64_t look_ns = 10 * ms_ns;
    const int64_t give_up_ns = monotonic_ns() + patience_ns;
    std::optional<int64_t> asked;  // the number of the process that was asked to end
    std::optional<Holder> holder;
    bool is_free = !is_locked(options.lock);
    bool is_another_s = false;
    while (!is_free && !is_another_s && monotonic_ns() < give_up_ns) {
        holder = read_holder(options.lock);  // without a notice it is just ending, or beginning
        is_another_s = holder && holder->token != options.token;
        if (holder && !is_another_s && asked != holder->pid) {
            // Only who is named there and has the lock indeed: another may have it by now, and a number can pass on.
            for (const pid_t pid : lock_holders(options.lock)) {
                if (pid == holder->pid && kill(pid, SIGTERM) == 0) {
                    asked = pid;
                }
            }
        }
        sleep_ns(look_ns);
        is_free = !is_locked(options.lock);
    }
    JsonWriter json;
    json.begin_object().field("released", is_free || (is_another_s && asked));
    write_holder(json, is_free ? std::nullopt : holder);
    json.end_object();
    print(json.text() + "\n");
    return exit_ok;
}

}  // namespace launcher
