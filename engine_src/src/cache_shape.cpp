#include "cache_shape.h"

#include "forced_routes.h"

#include <algorithm>

namespace moe {

namespace {

// The published pager keeps room for six tokens' routing of a layer, so that the large class is of use to small arenas.
constexpr uint32_t kLargeLayersAtLeast = 6;

uint32_t used_of(const ExpertSize & block, uint32_t top_k) { return std::min(top_k, block.experts); }

std::vector<uint32_t> split(const SlotClasses & classes, const CacheRequest & request) {
    const uint64_t least_large = uint64_t{kLargeLayersAtLeast} * request.top_k;
    std::vector<uint32_t> slots =
        classes.split(request.bytes, static_cast<uint32_t>(std::min<uint64_t>(least_large, classes.largest().experts)));
    if (!request.exact) {
        slots.back() = std::max(slots.back(), std::min(request.top_k, classes.largest().experts));
    }
    return slots;
}

void add_experts(ArenaShape & arena, const ExpertSize & block, const ArenaShape::Expert & expert) {
    arena.experts.insert(arena.experts.end(), block.experts, expert);
}

void shape_by_slots(CacheShape & shape, const SlotClasses & classes, const std::vector<ExpertSize> & blocks,
                    const CacheRequest & request) {
    std::vector<uint64_t> cycle(classes.count());
    for (size_t b = 0; b < blocks.size(); ++b) {
        add_experts(shape.arena, blocks[b], {classes.class_of(b), static_cast<uint32_t>(b), 1});
        cycle[classes.class_of(b)] += used_of(blocks[b], request.top_k);
    }
    shape.arena.slots = split(classes, request);
    shape.coverage = classes.coverage(shape.arena.slots);
    shape.whole_bytes = classes.whole_bytes();
    shape.holds_cycle = classes.hold(shape.arena.slots, cycle);
    shape.cycle.slots = cycle;
    for (size_t c = 0; c < classes.count(); ++c) {
        shape.cycle.bytes += cycle[c] * classes.sizes()[c].slot_bytes;
    }
    // More than the cycle's bytes where each class needs its last slot whole.
    CacheRequest least = request;
    const auto holds = [&] { return classes.hold(split(classes, least), cycle); };
    for (least.bytes = mebibytes_up(shape.cycle.bytes) << 20; !holds(); least.bytes += uint64_t{1} << 20) {
    }
    shape.cycle.least_bytes = least.bytes;
}

void shape_by_costs(CacheShape & shape, const ForcedRoutes & forced, const std::vector<ExpertSize> & blocks,
                    const CacheRequest & request) {
    uint64_t smallest = UINT64_MAX;
    uint64_t experts = 0;
    uint64_t & capacity = shape.arena.capacity;
    capacity = request.bytes;
    shape.cycle.slots.resize(1);
    for (uint32_t b = 0; b < blocks.size(); ++b) {
        const uint64_t cost = forced.expert_bytes(b);
        add_experts(shape.arena, blocks[b], {0, b, cost});
        smallest = std::min(smallest, cost);
        experts += blocks[b].experts;
        capacity = std::max(capacity, used_of(blocks[b], request.top_k) * cost);
        shape.cycle.slots[0] += used_of(blocks[b], request.top_k);
        shape.cycle.bytes += used_of(blocks[b], request.top_k) * cost;
        shape.whole_bytes += blocks[b].experts * cost;
    }
    shape.arena.slots = {static_cast<uint32_t>(std::min(capacity / smallest, experts))};
    shape.coverage = std::min(1.0, static_cast<double>(capacity) / static_cast<double>(shape.whole_bytes));
    shape.holds_cycle = request.bytes >= shape.cycle.bytes;
    shape.cycle.least_bytes = shape.cycle.bytes;
}

}  // namespace

CacheShape shape_cache(const std::vector<ExpertSize> & blocks, const ForcedRoutes * forced, CacheRequest request) {
    uint32_t most = 0;
    for (const ExpertSize & block : blocks) {
        most = std::max(most, block.experts);
    }
    request.top_k = std::min(request.top_k, most);
    CacheShape shape;
    const SlotClasses own(blocks);
    shape.classes = own.sizes();
    if (forced == nullptr) {
        shape_by_slots(shape, own, blocks, request);
        for (size_t c = 0; c < own.count(); ++c) {
            shape.regions.push_back({shape.arena.slots[c], own.sizes()[c].slot_bytes});
        }
    } else {
        // The cache counts in the traced model's sizes, so whatever it puts into a slot must have room there.
        if (forced->counts_slots()) {
            std::vector<ExpertSize> traced = blocks;
            for (uint32_t b = 0; b < traced.size(); ++b) {
                traced[b].slot_bytes = forced->expert_bytes(b);
            }
            shape_by_slots(shape, SlotClasses(traced), traced, request);
        } else {
            shape_by_costs(shape, *forced, blocks, request);
        }
        shape.regions = {{shape.arena.n_slots(), own.largest().slot_bytes}};
    }
    for (const SlotRegion & region : shape.regions) {
        shape.arena_bytes += region.slots * region.slot_bytes;
    }
    shape.least_arena_bytes = own.largest().slot_bytes;
    return shape;
}

}  // namespace moe
