// The expert store with read lanes that can be held: what is resident when, and what becomes of speculation.
#include "expert_store.h"

#include "check.h"
#include "decoding.h"
#include "read_bench.h"

#include <fstream>
#include <thread>

namespace {

using decoding::model;

constexpr uint32_t kParts = 3;

class Fixture {
public:
    explicit Fixture(uint32_t n_slots, int lanes = 1)
        : path_(tiny::write(model(GGML_TYPE_F16, 2), dir_.file("m"))),
          catalog_(moe::Catalog::read(path_)),
          layout_(catalog_),
          files_(catalog_.shards(), true),
          io_(files_, lanes, std::ref(gate)),
          store(catalog_, layout_, io_, decoding::store_options(layout_, n_slots)) {
        std::ifstream in(path_, std::ios::binary);
        content_.assign(std::istreambuf_iterator<char>(in), {});
    }
    ~Fixture() { gate.open(); }

    std::unique_ptr<moe::LayerExperts> begin(uint32_t block, const std::vector<uint32_t> & experts) {
        auto layer = store.begin(block, experts, 0, residency);
        layer->batch.wait();
        return layer;
    }
    void use(uint32_t block, const std::vector<uint32_t> & experts) {
        const auto layer = begin(block, experts);
        CHECK(in_memory(*layer, experts.size()));
        store.end(*layer);
    }
    // All the bytes of so many experts are where the layer says.
    bool in_memory(const moe::LayerExperts & layer, size_t n) const {
        bool ok = layer.resident.size() == n;
        for (const moe::ExpertSlot & s : layer.resident) {
            for (uint32_t p = 0; p < kParts; ++p) {
                const moe::ExpertPart & part = catalog_.block(layer.block).parts[p];
                const moe::PartSlots & slots = store.part({layer.block, p});
                ok = ok && std::memcmp(slots.front().at(s.slot), content_.data() + part.offset + s.expert * part.slice_bytes,
                                       part.slice_bytes) == 0;
            }
        }
        return ok;
    }
    void await_reads(uint64_t n) const {
        while (io_.counters().reads < n) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    uint64_t reads() const { return io_.counters().reads; }
    void truncate_file(size_t missing) const {
        CHECK(truncate(path_.c_str(), static_cast<off_t>(content_.size() - missing)) == 0);
    }
    void repair_file() const {
        std::ofstream(path_, std::ios::binary | std::ios::in | std::ios::out).write(content_.data(),
              static_cast<std::streamsize>(content_.size()));
    }

    Gate gate;
    std::vector<moe::Residency> residency;

private:
    TempDir dir_;
    std::string path_;
    std::string content_;
    moe::Catalog catalog_;
    moe::SlotLayout layout_;
    moe::ShardFiles files_;
    moe::IoPool io_;

public:
    moe::ExpertStore store;
};

using R = moe::Residency;

// Not before the store has taken it in: until then its slot has the pin of the read, and no other.
void speculation_is_resident_once_it_is_taken_in() {
    Fixture f(4);
    CHECK(f.store.speculate(1, 5));
    CHECK(!f.store.speculate(1, 5));
    CHECK(!f.store.resident(1, 5));
    f.gate.open();
    f.await_reads(kParts);
    CHECK(!f.store.resident(1, 5));
    CHECK(!f.store.retain(1, 5));
    f.store.collect_speculation();
    CHECK(f.store.resident(1, 5));
    CHECK(f.store.retain(1, 5));
    CHECK(f.store.counters().speculated == 1 && f.store.counters().retained == 1);
    CHECK(f.store.counters().hits == 0);
}

void speculation_is_useful_once() {
    Fixture f(4);
    f.gate.open();
    CHECK(f.store.speculate(1, 5));
    f.await_reads(kParts);
    f.use(1, {5, 6});
    CHECK((f.residency == std::vector<R>{R::speculative, R::miss}));
    f.use(1, {5, 6});
    CHECK((f.residency == std::vector<R>{R::hit, R::hit}));
    CHECK(f.store.counters().speculated_useful == 1);
    CHECK(f.store.counters().hits == 3 && f.store.counters().misses == 1);
}

// It goes before everything that a layer has needed.
void unused_speculation_is_the_first_to_be_evicted() {
    Fixture f(4);
    f.gate.open();
    f.use(0, {0, 1});
    CHECK(f.store.speculate(1, 5));
    f.await_reads(3 * kParts);
    f.use(1, {2, 3});
    CHECK(f.store.resident(0, 0) && f.store.resident(0, 1) && !f.store.resident(1, 5));
    CHECK(f.store.counters().evictions.total() == 1);
    // The next that takes the slot is not taken for a speculative one.
    f.use(1, {2, 3});
    CHECK((f.residency == std::vector<R>{R::hit, R::hit}));
}

void failed_speculation_is_forgotten() {
    Fixture f(2);
    f.gate.open();
    f.truncate_file(1000);
    CHECK(f.store.speculate(1, 7));
    f.await_reads(kParts);
    f.store.collect_speculation();
    CHECK(!f.store.resident(1, 7));
    CHECK(f.store.counters().speculated == 0);
    f.use(0, {0, 1});  // both slots are to be had
    f.repair_file();
    f.use(1, {6, 7});
    CHECK((f.residency == std::vector<R>{R::miss, R::miss}));
}

// What had failed is read again with the rest.
void a_needed_expert_takes_over_what_speculation_has_read() {
    Fixture f(4);
    f.gate.let_pass(1);
    CHECK(f.store.speculate(1, 5));
    f.gate.await_arrivals(2);
    std::thread lane([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // begin() has to wait for the read in flight
        f.gate.open();
    });
    const auto layer = f.begin(1, {5});
    lane.join();
    CHECK((f.residency == std::vector<R>{R::miss}));
    CHECK(f.in_memory(*layer, 1));
    CHECK(f.reads() == kParts);
    f.store.end(*layer);
    CHECK(f.store.resident(1, 5));
    CHECK(f.store.counters().speculated == 0);
}

void a_layer_gets_the_slots_that_speculation_holds() {
    Fixture f(3);
    f.gate.let_pass(2 * kParts);
    f.use(0, {0, 1});
    CHECK(f.store.speculate(1, 5));
    f.gate.await_arrivals(2 * kParts + 1);
    f.gate.open();
    f.use(0, {1, 2, 3});
    f.use(1, {1, 2, 3});
    CHECK(!f.store.resident(1, 5));
}

void nothing_is_speculated_into_the_slots_of_a_layer() {
    Fixture f(2);
    f.gate.open();
    const auto layer = f.begin(0, {0, 1});
    CHECK(!f.store.speculate(1, 5));
    CHECK(f.in_memory(*layer, 2));
    f.store.end(*layer);
    CHECK(f.store.speculate(1, 5));
}

void a_batch_beyond_the_arena_gets_all_slots() {
    Fixture f(4);
    f.gate.let_pass(2 * kParts);
    f.use(0, {0, 1});
    CHECK(f.store.speculate(1, 5));
    f.gate.await_arrivals(2 * kParts + 1);
    f.gate.open();
    const auto layer = f.store.begin(0, {0, 1, 2, 3, 4, 5}, 0, f.residency);
    CHECK(layer->resident.size() + layer->stream_slots.size() == 4);
    CHECK(layer->resident.size() == 2 && layer->streamed.size() == 4);
    f.store.end(*layer);
    f.use(1, {0, 1, 2, 3});
}

}  // namespace

int main() {
    check::run("speculation is resident once it is taken in", speculation_is_resident_once_it_is_taken_in);
    check::run("speculation is useful once", speculation_is_useful_once);
    check::run("unused speculation is the first to be evicted", unused_speculation_is_the_first_to_be_evicted);
    check::run("failed speculation is forgotten", failed_speculation_is_forgotten);
    check::run("a needed expert takes over what speculation has read",
               a_needed_expert_takes_over_what_speculation_has_read);
    check::run("a layer gets the slots that speculation holds", a_layer_gets_the_slots_that_speculation_holds);
    check::run("nothing is speculated into the slots of a layer", nothing_is_speculated_into_the_slots_of_a_layer);
    check::run("a batch beyond the arena gets all slots", a_batch_beyond_the_arena_gets_all_slots);
    return check::result();
}
