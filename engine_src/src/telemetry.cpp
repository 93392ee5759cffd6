#include "telemetry.h"

#include "error.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace moe {

double CallCost::compute_ms() const { return paging ? wall_ms - paging->stall_ms - paging->manage_ms : wall_ms; }

CallCost & CallCost::operator+=(const CallCost & other) {
    wall_ms += other.wall_ms;
    majflt += other.majflt;
    minflt += other.minflt;
    cpu_ms += other.cpu_ms;
    invol_ctx += other.invol_ctx;
    if (other.paging) {
        if (!paging) {
            paging.emplace();
        }
        paging->io_ms += other.paging->io_ms;
        paging->stall_ms += other.paging->stall_ms;
        paging->manage_ms += other.paging->manage_ms;
        paging->read_bytes += other.paging->read_bytes;
        paging->requests += other.paging->requests;
        paging->hits += other.paging->hits;
        paging->misses += other.paging->misses;
        paging->evictions += other.paging->evictions;
        paging->eviction_groups += other.paging->eviction_groups;
        if (other.paging->foresight) {
            auto & mine = paging->foresight ? *paging->foresight : paging->foresight.emplace();
            mine.read_bytes += other.paging->foresight->read_bytes;
            mine.experts += other.paging->foresight->experts;
            mine.useful += other.paging->foresight->useful;
            mine.retained += other.paging->foresight->retained;
        }
        if (other.paging->drops) {
            auto & mine = paging->drops ? *paging->drops : paging->drops.emplace();
            mine.routed += other.paging->drops->routed;
            mine.dropped += other.paging->drops->dropped;
        }
    }
    return *this;
}

namespace {

// The one list of columns. `visit(name, value)` gets every column after `token`; value is empty when not measured.
template <class Visitor>
void visit_columns(const CallCost & cost, Visitor && visit) {
    const auto paged = [&](const char * name, auto field) {
        visit(name, !cost.paging                                        ? std::string()
                    : std::is_floating_point_v<decltype(field(PagingCost{}))>
                        ? json_number(static_cast<double>(field(*cost.paging)))
                        : std::to_string(static_cast<uint64_t>(field(*cost.paging))));
    };
    visit("wall_ms", json_number(cost.wall_ms));
    paged("io_ms", [](const PagingCost & p) { return p.io_ms; });
    visit("compute_ms", json_number(cost.compute_ms()));
    paged("stall_ms", [](const PagingCost & p) { return p.stall_ms; });
    paged("manage_ms", [](const PagingCost & p) { return p.manage_ms; });
    paged("read_bytes", [](const PagingCost & p) { return p.read_bytes; });
    paged("requests", [](const PagingCost & p) { return p.requests; });
    paged("hits", [](const PagingCost & p) { return p.hits; });
    paged("misses", [](const PagingCost & p) { return p.misses; });
    paged("evictions", [](const PagingCost & p) { return p.evictions; });
    const auto foresight = [&](const char * name, uint64_t PagerCounters::Foresight::* field) {
        const bool measured = cost.paging && cost.paging->foresight;
        visit(name, measured ? std::to_string((*cost.paging->foresight).*field) : std::string());
    };
    foresight("spec_read_bytes", &PagerCounters::Foresight::read_bytes);
    foresight("spec_experts", &PagerCounters::Foresight::experts);
    foresight("spec_useful", &PagerCounters::Foresight::useful);
    foresight("retained", &PagerCounters::Foresight::retained);
    const auto drops = [&](const char * name, uint64_t PagerCounters::Drops::* field) {
        const bool measured = cost.paging && cost.paging->drops;
        visit(name, measured ? std::to_string((*cost.paging->drops).*field) : std::string());
    };
    drops("routed", &PagerCounters::Drops::routed);
    drops("dropped", &PagerCounters::Drops::dropped);
    paged("evict_stale_left", [](const PagingCost & p) { return p.eviction_groups.stale_left; });
    paged("evict_stale_right", [](const PagingCost & p) { return p.eviction_groups.stale_right; });
    paged("evict_current_left", [](const PagingCost & p) { return p.eviction_groups.current_left; });
    paged("evict_current_right", [](const PagingCost & p) { return p.eviction_groups.current_right; });
    visit("majflt", std::to_string(cost.majflt));
    visit("minflt", std::to_string(cost.minflt));
    visit("cpu_ms", json_number(cost.cpu_ms));
    visit("invol_ctx", std::to_string(cost.invol_ctx));
}

}  // namespace

std::string csv_header() {
    std::string line = "token";
    visit_columns(CallCost{}, [&](const char * name, const std::string &) { line += std::string(",") + name; });
    return line;
}

std::string csv_row(uint64_t token, const CallCost & cost) {
    std::string line = std::to_string(token);
    visit_columns(cost, [&](const char *, const std::string & value) { line += "," + value; });
    return line;
}

void add_cost(JsonObject & object, const CallCost & cost) {
    visit_columns(cost, [&](const char * name, const std::string & value) {
        object.raw(name, value.empty() ? "null" : value);
    });
}

std::string cost_json(const CallCost & cost) {
    JsonObject object;
    add_cost(object, cost);
    return object.str();
}

LineFile::LineFile(std::string path, std::string what) : path_(std::move(path)), what_(std::move(what)) {
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) {
        fail("open");
    }
}

LineFile::~LineFile() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

void LineFile::fail(const char * action) const {
    throw Error(ExitCode::io, std::string("cannot ") + action + " " + what_ + " file '" + path_ + "': " +
                                  std::strerror(errno));
}

void LineFile::write(const std::string & line) {
    const std::string text = line + '\n';
    append(text.data(), text.size());
}

void LineFile::append(const void * data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = ::write(fd_, static_cast<const char *>(data) + done, bytes - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            fail("write");
        }
        done += static_cast<size_t>(n);
    }
}

void LineFile::close() {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && ::close(fd) != 0) {
        fail("close");
    }
}

}  // namespace moe
