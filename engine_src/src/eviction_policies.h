// The policies, a maker for each.
#pragma once

#include "eviction.h"

namespace moe {

// Least recently used, over all blocks.
std::unique_ptr<EvictionPolicy> make_lru(const ArenaShape & shape);

// An equal share of the arena for every block, least recently used inside.
std::unique_ptr<EvictionPolicy> make_layer(const ArenaShape & shape);

// Stale before current; the first block first, in the order in which they became one or the other.
std::unique_ptr<EvictionPolicy> make_ls(const ArenaShape & shape);

// The same by position: stale left, current left, stale right, current right; the last block first.
std::unique_ptr<EvictionPolicy> make_ls_pos(const ArenaShape & shape);

// Least often used, equals by recency.
std::unique_ptr<EvictionPolicy> make_lfu(const ArenaShape & shape);

// Whose next use is expected last, by how often it was used lately and by when its block's turn comes.
std::unique_ptr<EvictionPolicy> make_reuse_distance(const ArenaShape & shape);

}  // namespace moe
