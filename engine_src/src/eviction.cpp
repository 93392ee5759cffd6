#include "eviction.h"

#include "error.h"
#include "eviction_policies.h"

#include <algorithm>
#include <utility>

namespace moe {

namespace {

using Maker = std::unique_ptr<EvictionPolicy> (*)(const ArenaShape &);

const std::vector<std::pair<std::string, Maker>> & policies() {
    static const std::vector<std::pair<std::string, Maker>> table = {
        {"lru", make_lru}, {"ls", make_ls},       {"ls_pos", make_ls_pos},
        {"lfu", make_lfu}, {"layer", make_layer}, {"reuse_distance", make_reuse_distance}};
    return table;
}

}  // namespace

EvictionCounts & EvictionCounts::operator+=(const EvictionCounts & other) {
    stale_left += other.stale_left;
    stale_right += other.stale_right;
    current_left += other.current_left;
    current_right += other.current_right;
    return *this;
}

EvictionCounts EvictionCounts::operator-(const EvictionCounts & other) const {
    return {stale_left - other.stale_left, stale_right - other.stale_right, current_left - other.current_left,
            current_right - other.current_right};
}

const std::vector<std::string> & eviction_policy_names() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const auto & [name, maker] : policies()) {
            all.push_back(name);
        }
        return all;
    }();
    return names;
}

std::unique_ptr<EvictionPolicy> make_eviction_policy(const std::string & name, const ArenaShape & shape) {
    const auto it = std::find_if(policies().begin(), policies().end(), [&](const auto & p) { return p.first == name; });
    if (it == policies().end()) {
        throw Error(ExitCode::usage, "no eviction policy is called '" + name + "'");
    }
    return it->second(shape);
}

}  // namespace moe
