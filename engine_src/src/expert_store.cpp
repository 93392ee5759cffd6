#include "expert_store.h"

#include "clock.h"
#include "error.h"

#include <algorithm>
#include <utility>

namespace moe {

ExpertStore::ExpertStore(const Catalog & catalog, const SlotLayout & layout, IoPool & io, const StoreOptions & options)
    : catalog_(catalog),
      layout_(layout),
      io_(io),
      reuse_(options.reuse),
      arena_(options.arena, options.policy),
      regions_(options.regions),
      memory_(options.regions, options.commit),
      first_touch_pending_(arena_.n_slots(), false) {
    for (uint32_t b = 0; b < catalog.blocks().size(); ++b) {
        std::vector<PartSlots> parts;
        for (uint32_t p = 0; p < n_parts(b); ++p) {
            parts.push_back(memory_.part(layout.place({b, p})));
        }
        part_slots_.push_back(std::move(parts));
    }
}

ExpertStore::~ExpertStore() = default;

StoreCounters ExpertStore::counters() const {
    StoreCounters counters = counters_;
    counters.evictions = arena_.evictions();
    const std::vector<uint32_t> resident = resident_slots();
    for (size_t r = 0; r < regions_.size(); ++r) {
        counters.resident_bytes += resident[r] * regions_[r].slot_bytes;
    }
    return counters;
}

// A region is a class, or all classes where these are another model's.
std::vector<uint32_t> ExpertStore::resident_slots() const {
    std::vector<uint32_t> resident;
    for (uint32_t r = 0; r < regions_.size(); ++r) {
        resident.push_back(regions_.size() == 1 ? arena_.n_resident() : arena_.n_resident(r));
    }
    return resident;
}

bool ExpertStore::resident(uint32_t block, uint32_t expert) const {
    const uint32_t slot = arena_.find(key(block, expert));
    // The slot of a speculative read is occupied, and pinned, from the start until the read is collected. What is found
    // complete in between must not be used: collecting it would take away the pin of its user.
    return slot != Arena::kNone && std::none_of(speculations_.begin(), speculations_.end(),
                                                [&](const auto & s) { return s->slot == slot; });
}

std::unique_ptr<LayerExperts> ExpertStore::begin(uint32_t block, const std::vector<uint32_t> & experts,
                                                 uint32_t first_part, std::vector<Residency> & residency) {
    collect_speculation();
    arena_.reach(block);
    auto layer = std::make_unique<LayerExperts>(io_);
    layer->block = block;

    // Hits are pinned before anything is given away, else one miss could evict the next hit.
    residency.clear();
    std::vector<uint32_t> missing;
    for (const uint32_t expert : experts) {
        if (!resident(block, expert)) {
            missing.push_back(expert);
            residency.push_back(Residency::miss);
            continue;
        }
        const uint32_t slot = arena_.find(key(block, expert));
        arena_.pin(slot);
        layer->resident.push_back({expert, slot});
        residency.push_back(first_touch_pending_[slot] ? Residency::speculative : Residency::hit);
        counters_.speculated_useful += first_touch_pending_[slot] ? 1 : 0;
        first_touch_pending_[slot] = false;
    }
    uint64_t cost = 0;
    for (const uint32_t expert : experts) {
        cost += arena_.cost(key(block, expert));
    }
    counters_.hits += layer->resident.size();
    layer->n_hits = layer->resident.size();
    if (arena_.could_hold(experts.size(), cost, slot_class(block))) {
        counters_.misses += missing.size();
        load(*layer, missing, first_part);
        // Recency follows the order of use, hits and misses alike.
        for (const uint32_t expert : experts) {
            arena_.touch(arena_.find(key(block, expert)));
        }
    } else {
        stream(*layer, std::move(missing));
        counters_.hits -= layer->n_hits - layer->resident.size();
        layer->n_hits = layer->resident.size();
        counters_.misses += layer->streamed.size();
        for (size_t i = 0; i < experts.size(); ++i) {
            if (!resident(block, experts[i])) {
                residency[i] = Residency::miss;
            } else {
                arena_.touch(arena_.find(key(block, experts[i])));
            }
        }
    }
    return layer;
}

std::unique_ptr<LayerExperts> ExpertStore::begin_load_all(uint32_t block) {
    arena_.reach(block);
    auto layer = std::make_unique<LayerExperts>(io_);
    layer->block = block;
    std::vector<uint32_t> all(catalog_.block(block).n_expert);
    for (uint32_t expert = 0; expert < all.size(); ++expert) {
        all[expert] = expert;
    }
    counters_.misses += all.size();
    stream(*layer, std::move(all));
    return layer;
}

void ExpertStore::begin_pass() { arena_.begin_pass(); }

// Experts that a speculative read has brought in part are adopted: what it has read need not be read again.
void ExpertStore::load(LayerExperts & layer, const std::vector<uint32_t> & missing, uint32_t first_part) {
    layer.all_in_memory = missing.empty();
    if (missing.empty()) {
        return;
    }
    const uint32_t parts = n_parts(layer.block);
    layer.requests.assign(parts, std::vector<size_t>(missing.size(), LayerExperts::kInMemory));
    for (const auto & s : speculations_) {
        s->batch.cancel();
    }
    std::vector<std::unique_ptr<Speculation>> adopted(missing.size());
    for (size_t i = 0; i < missing.size(); ++i) {
        adopted[i] = take_speculation(layer.block, missing[i]);  // its slot stays pinned
    }
    for (size_t i = 0; i < missing.size(); ++i) {
        const uint32_t slot = adopted[i] ? adopted[i]->slot : acquire_slot(layer.block, missing[i]);
        arena_.pin(slot);
        layer.resident.push_back({missing[i], slot});
    }

    std::vector<ReadRequest> requests;
    for (uint32_t p = 0; p < parts; ++p) {
        const uint32_t part = p == 0 ? first_part : p <= first_part ? p - 1 : p;
        for (size_t i = 0; i < missing.size(); ++i) {
            if (adopted[i] && adopted[i]->batch.ended(part)) {
                continue;
            }
            layer.requests[part][i] = requests.size();
            requests.push_back(request({layer.block, part}, missing[i], layer.resident[layer.n_hits + i].slot));
        }
    }
    layer.batch.submit(requests, ReadUrgency::demand);
}

// Nobody else's experts can stay: what is not pinned makes room for this layer's.
void ExpertStore::stream(LayerExperts & layer, std::vector<uint32_t> missing) {
    stop_speculation();
    const uint32_t first_slot = arena_.first_slot(slot_class(layer.block));
    // Half of the slots that will do at least must be free to stream through.
    while (layer.resident.size() > (arena_.n_slots() - first_slot) / 2) {
        arena_.evict(layer.resident.back().slot);
        missing.push_back(layer.resident.back().expert);
        layer.resident.pop_back();
    }
    std::sort(missing.begin(), missing.end());
    layer.streamed = std::move(missing);
    for (uint32_t slot = first_slot; slot < arena_.n_slots(); ++slot) {
        if (!arena_.pinned(slot)) {
            if (arena_.resident(slot)) {
                arena_.evict(slot);
            }
            first_touch_pending_[slot] = false;
            layer.stream_slots.push_back(slot);
        }
    }
    streaming_ = true;
}

void ExpertStore::end(LayerExperts & layer) {
    if (!layer.all_in_memory) {
        layer.batch.stop();
    }
    for (size_t i = 0; i < layer.resident.size(); ++i) {
        const uint32_t slot = layer.resident[i].slot;
        arena_.unpin(slot);
        if (!reuse_ || !whole(layer, i)) {
            arena_.discard(slot);
        }
    }
    layer.resident.clear();
    if (!layer.stream_slots.empty()) {
        streaming_ = false;
    }
}

bool ExpertStore::whole(const LayerExperts & layer, size_t i) {
    return layer.all_in_memory || i < layer.n_hits ||
           std::all_of(layer.requests.begin(), layer.requests.end(), [&](const std::vector<size_t> & part) {
               const size_t request = part[i - layer.n_hits];
               return request == LayerExperts::kInMemory || layer.batch.ended(request);
           });
}

bool ExpertStore::retain(uint32_t block, uint32_t expert) {
    if (!resident(block, expert)) {
        return false;
    }
    arena_.retain(arena_.find(key(block, expert)));
    ++counters_.retained;
    return true;
}

bool ExpertStore::speculate(uint32_t block, uint32_t expert) {
    if (streaming_ || arena_.find(key(block, expert)) != Arena::kNone) {
        return false;
    }
    const uint32_t slot = arena_.acquire(key(block, expert), Arena::Recency::oldest);
    if (slot == Arena::kNone) {
        return false;
    }
    arena_.pin(slot);
    first_touch_pending_[slot] = false;
    auto s = std::make_unique<Speculation>(io_, block, expert, slot);
    std::vector<ReadRequest> requests;
    for (uint32_t part = 0; part < n_parts(block); ++part) {
        requests.push_back(request({block, part}, expert, slot));
    }
    s->batch.submit(requests, ReadUrgency::speculative);
    speculations_.push_back(std::move(s));
    return true;
}

void ExpertStore::collect_speculation() {
    const auto settled = [this](const std::unique_ptr<Speculation> & s) {
        if (!s->batch.idle()) {
            return false;
        }
        arena_.unpin(s->slot);
        if (whole(*s)) {
            first_touch_pending_[s->slot] = true;
            ++counters_.speculated;
        } else {
            arena_.discard(s->slot);  // cancelled, or it could not be read
        }
        return true;
    };
    speculations_.erase(std::remove_if(speculations_.begin(), speculations_.end(), settled), speculations_.end());
}

void ExpertStore::stop_speculation() {
    for (const auto & s : speculations_) {
        s->batch.cancel();
    }
    for (const auto & s : speculations_) {
        stop(s->batch);
    }
    collect_speculation();
}

void ExpertStore::stop(ReadBatch & batch) {
    const int64_t begin = now_ns();
    batch.stop();
    waited_ns_ += now_ns() - begin;
}

bool ExpertStore::whole(const Speculation & s) const {
    for (uint32_t part = 0; part < n_parts(s.block); ++part) {
        if (!s.batch.ended(part)) {
            return false;
        }
    }
    return true;
}

// The speculative read of an expert that is now needed, with nothing of it in flight any more.
std::unique_ptr<ExpertStore::Speculation> ExpertStore::take_speculation(uint32_t block, uint32_t expert) {
    const auto it = std::find_if(speculations_.begin(), speculations_.end(),
                                 [&](const auto & s) { return s->block == block && s->expert == expert; });
    if (it == speculations_.end()) {
        return nullptr;
    }
    std::unique_ptr<Speculation> taken = std::move(*it);
    speculations_.erase(it);
    stop(taken->batch);
    return taken;
}

uint32_t ExpertStore::acquire_slot(uint32_t block, uint32_t expert) {
    uint32_t slot = arena_.acquire(key(block, expert));
    if (slot == Arena::kNone) {
        stop_speculation();  // it holds slots as long as it is in flight
        slot = arena_.acquire(key(block, expert));
    }
    if (slot == Arena::kNone) {
        throw Error(ExitCode::other, "the arena has no slot left for a routed expert");
    }
    first_touch_pending_[slot] = false;
    return slot;
}

std::unique_ptr<ReadBatch> ExpertStore::read(const std::vector<ReadRequest> & requests) {
    auto batch = std::make_unique<ReadBatch>(io_);
    batch->submit(requests, ReadUrgency::demand);
    return batch;
}

ReadRequest ExpertStore::request(PartRef ref, uint32_t expert, uint32_t slot) const {
    const MoeBlock & block = catalog_.block(ref.block);
    const ExpertPart & part = block.parts[ref.part];
    const PartPlace & place = layout_.place(ref);
    ReadRequest request;
    request.shard = part.shard;
    request.offset = part.offset + expert * part.slice_bytes;
    request.size = part.slice_bytes;
    request.window = memory_.slot(slot) + place.window;
    request.shift = place.shift;
    request.tag = {block.layer, expert, ref.part};
    return request;
}

}  // namespace moe
