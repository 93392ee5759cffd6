#include "aligned_memory.h"
#include "clock.h"
#include "error.h"
#include "io_pool.h"
#include "shard_files.h"

#include "check.h"
#include "pattern_file.h"
#include "read_bench.h"
#include "temp_dir.h"

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace moe;

namespace {

struct Range {
    uint64_t offset, size, shift;
};

// Ranges with every kind of edge: aligned or not, across blocks, at the ragged end of the file.
void reads_are_exact(bool direct) {
    const TempDir dir;
    const std::vector<char> bytes = pattern(kFileBytes);
    write_file(dir.file("a"), bytes);
    const ShardFiles files({dir.file("a")}, direct);
    const Range ranges[] = {{0, 4096, 0},      {4096, 8192, 0},       {1, 4095, 0},       {100, 50'000, 0},
                            {100, 8192, 100},  {8191, 2, 0},          {12'288, 1, 0},     {299'000, 1001, 0},
                            {294'912, 5089, 0}, {300'000, 1, 0},      {0, 300'001, 0},    {7, 4096, 7}};
    for (const int lanes : {1, 4, 16}) {
        IoPool pool(files, lanes);
        std::vector<AlignedMemory> windows;
        std::vector<ReadRequest> requests;
        uint64_t asked = 0;
        for (const Range & r : ranges) {
            windows.emplace_back(align_up(r.size + 2 * kIoBlock));
            requests.push_back({0, r.offset, r.size, windows.back().data(), r.shift});
            asked += files.direct() ? align_up(r.offset % kIoBlock + r.size) : r.size;
        }
        {
            ReadBatch batch(pool);
            batch.submit(requests, ReadUrgency::demand);
            batch.wait();
        }
        for (size_t i = 0; i < requests.size(); ++i) {
            CHECK(std::memcmp(windows[i].data() + ranges[i].shift, bytes.data() + ranges[i].offset, ranges[i].size) == 0);
        }
        const IoCounters counters = pool.counters();
        CHECK(counters.reads == requests.size());
        CHECK(counters.read_bytes == asked);
        CHECK(counters.speculative_reads == 0);
        CHECK(counters.io_ms > 0);
    }
}

void demand_overtakes_queued_speculation() {
    const Bench bench(8);
    Gate gate;
    IoPool pool(bench.files(), 1, std::ref(gate));
    ReadBatch held(pool), speculation(pool), first(pool), second(pool);
    held.submit(bench.requests(0, 1), ReadUrgency::speculative);
    gate.await_arrivals(1);
    speculation.submit(bench.requests(1, 4), ReadUrgency::speculative);
    first.submit(bench.requests(4, 6), ReadUrgency::demand);
    second.submit(bench.requests(6, 7), ReadUrgency::demand);
    speculation.submit(bench.requests(7, 8), ReadUrgency::demand);
    gate.open();
    for (ReadBatch * batch : {&held, &speculation, &first, &second}) {
        batch->wait();
    }
    CHECK((gate.experts() == std::vector<uint32_t>{0, 4, 5, 6, 7, 1, 2, 3}));
    for (const IoEvent & event : gate.events()) {
        CHECK(event.speculative == (event.request.tag.expert < 4));
    }
    const IoCounters counters = pool.counters();
    CHECK(counters.reads == 8);
    CHECK(counters.speculative_reads == 4);
    CHECK(counters.speculative_read_bytes > 0 && counters.speculative_read_bytes < counters.read_bytes);
}

void cancel_takes_back_what_is_queued_and_nothing_else() {
    const Bench bench(9);
    Gate gate;
    IoPool pool(bench.files(), 1, std::ref(gate));
    ReadBatch batch(pool), bystander(pool);
    batch.submit(bench.requests(0, 1), ReadUrgency::demand);
    gate.await_arrivals(1);
    bystander.submit(bench.requests(6, 7), ReadUrgency::demand);
    batch.submit(bench.requests(1, 3), ReadUrgency::demand);
    batch.submit(bench.requests(3, 6), ReadUrgency::speculative);
    bystander.submit(bench.requests(7, 9), ReadUrgency::demand);
    CHECK(batch.cancel() == 5);
    CHECK(batch.cancel() == 0);
    CHECK(!batch.idle());
    gate.open();
    batch.wait();
    bystander.wait();
    CHECK(batch.idle());
    CHECK(batch.ended(0));
    CHECK(bench.arrived(0));
    for (uint32_t i = 1; i < 6; ++i) {
        CHECK(!batch.ended(i));
        CHECK(bench.untouched(i));
    }
    CHECK((gate.experts() == std::vector<uint32_t>{0, 6, 7, 8}));
    CHECK(pool.counters().reads == 4);

    // The batch can be used again, and numbers on.
    batch.submit(bench.requests(5, 6), ReadUrgency::demand);
    batch.wait();
    CHECK(batch.ended(6) && !batch.ended(5));
}

void stop_leaves_nothing_in_flight() {
    const Bench bench(4);
    Gate gate;
    IoPool pool(bench.files(), 1, std::ref(gate));
    ReadBatch batch(pool);
    batch.submit(bench.requests(0, 4), ReadUrgency::speculative);
    gate.await_arrivals(1);
    gate.open();
    batch.stop();
    CHECK(batch.idle());
    CHECK(batch.ended(0));
    size_t ended = 0;
    for (uint32_t i = 0; i < 4; ++i) {
        ended += batch.ended(i) ? 1 : 0;
        CHECK(batch.ended(i) || bench.untouched(i));
    }
    CHECK(pool.counters().speculative_reads == ended);
}

void wait_new_returns_each_request_once() {
    using Indices = std::vector<size_t>;
    const Bench bench(6);
    Gate gate;
    IoPool pool(bench.files(), 1, std::ref(gate));
    ReadBatch batch(pool);
    batch.submit(bench.requests(0, 6), ReadUrgency::demand);
    gate.let_pass(1);
    CHECK((batch.wait_new(0, 6) == Indices{0}));
    gate.let_pass(1);
    CHECK((batch.wait_new(0, 6) == Indices{1}));
    gate.let_pass(2);
    CHECK((batch.wait_new(3, 4) == Indices{3}));
    CHECK((batch.wait_new(0, 6) == Indices{2}));
    CHECK(batch.wait_new(0, 4).empty());
    CHECK(batch.ended(3) && !batch.ended(4));

    gate.await_arrivals(5);
    CHECK(batch.cancel() == 1);
    CHECK(batch.wait_new(5, 6).empty());
    gate.let_pass(1);
    CHECK((batch.wait_new(0, 6) == Indices{4}));
    CHECK(batch.wait_new(0, 6).empty());
    CHECK(batch.idle());
}

void an_abandoned_batch_takes_back_what_is_queued() {
    Bench bench(4);
    Gate gate;
    IoPool pool(bench.files(), 1, std::ref(gate));
    ReadBatch held(pool);
    held.submit(bench.requests(0, 1), ReadUrgency::demand);
    gate.await_arrivals(1);
    {
        ReadBatch abandoned(pool);
        abandoned.submit(bench.requests(1, 3), ReadUrgency::demand);
        abandoned.submit(bench.requests(3, 4), ReadUrgency::speculative);
    }  // while the only lane is held: nothing of it may need one
    gate.open();
    held.wait();
    CHECK(gate.experts() == std::vector<uint32_t>{0});
    CHECK(bench.untouched(1) && bench.untouched(2) && bench.untouched(3));
}

void an_abandoned_batch_waits_for_what_is_in_flight() {
    const Bench bench(4);
    for (int round = 0; round < 20; ++round) {
        Gate gate;
        IoPool pool(bench.files(), 2, std::ref(gate));
        std::thread opener;
        {
            ReadBatch abandoned(pool);
            abandoned.submit(bench.requests(0, 4), ReadUrgency::demand);
            gate.await_arrivals(2);
            opener = std::thread([&] { gate.open(); });
        }
        CHECK(gate.passed() >= 2);
        CHECK(gate.passed() == gate.events().size());
        opener.join();
    }
}

void a_failed_read_surfaces_where_it_is_waited_for() {
    for (const bool direct : {true, false}) {
        Bench bench(40, direct);
        IoPool pool(bench.files(), 3);
        const auto fails = [&](const std::function<void(ReadBatch &)> & wait) {
            ReadBatch batch(pool);
            std::vector<ReadRequest> requests = bench.requests(0, 40);
            requests[3] = bench.doomed(3);
            batch.submit(requests, ReadUrgency::demand);
            CHECK(throws_io([&] { wait(batch); }));
            CHECK(batch.idle());
            CHECK(!batch.ended(3));

            // What has been given up is not written to any more; the pool goes on serving.
            for (uint32_t i = 0; i < 40; ++i) {
                bench.reset(i);
            }
            ReadBatch other(pool);
            other.submit(bench.requests(7, 8), ReadUrgency::demand);
            other.wait();
            for (uint32_t i = 0; i < 40; ++i) {
                CHECK(i == 7 ? bench.arrived(i) : bench.untouched(i));
            }
        };
        fails([](ReadBatch & batch) { batch.wait(); });
        fails([](ReadBatch & batch) {
            while (!batch.wait_new(0, 40).empty()) {
            }
        });
    }
}

void failed_speculation_harms_nothing_else() {
    const Bench bench(4);
    IoPool pool(bench.files(), 1);
    ReadBatch speculation(pool);
    speculation.submit({bench.doomed(0), bench.request(1), bench.request(2)}, ReadUrgency::speculative);
    ReadBatch demand(pool);
    demand.submit(bench.requests(3, 4), ReadUrgency::demand);
    demand.wait();
    CHECK(bench.arrived(3));

    std::vector<size_t> ended;
    while (ended.size() < 2) {
        for (const size_t i : speculation.wait_new(1, 3)) {
            ended.push_back(i);
        }
    }
    CHECK((ended == std::vector<size_t>{1, 2}));
    CHECK(!speculation.ended(0) && speculation.ended(1) && speculation.ended(2));
    CHECK(bench.arrived(1) && bench.arrived(2));
    CHECK(throws_io([&] { speculation.wait_new(0, 1); }));
    CHECK(pool.counters().speculative_reads == 3);
}

void io_time_runs_while_something_is_unserved() {
    const int64_t begin_ns = now_ns();
    const Bench bench(4);
    Gate gate;
    IoPool pool(bench.files(), 1, std::ref(gate));
    CHECK(pool.counters().io_ms == 0);
    ReadBatch held(pool), cancelled(pool);
    held.submit(bench.requests(0, 1), ReadUrgency::demand);
    gate.await_arrivals(1);
    cancelled.submit(bench.requests(1, 4), ReadUrgency::speculative);
    CHECK(pool.counters().reads == 0);
    const double in_flight_ms = pool.counters().io_ms;
    CHECK(in_flight_ms > 0);
    CHECK(cancelled.cancel() == 3);
    gate.open();
    held.wait();
    const double at_rest_ms = pool.counters().io_ms;
    CHECK(at_rest_ms >= in_flight_ms);
    CHECK(pool.counters().io_ms == at_rest_ms);

    // A burst that ends with a cancellation.
    held.submit(bench.requests(0, 4), ReadUrgency::demand);
    held.cancel();
    held.wait();
    const double after_ms = pool.counters().io_ms;
    CHECK(after_ms >= at_rest_ms);
    CHECK(after_ms <= ns_to_ms(now_ns() - begin_ns));
    CHECK(pool.counters().io_ms == after_ms);
}

void the_observer_sees_what_is_counted() {
    for (const bool direct : {true, false}) {
        const Bench bench(3, direct);
        Gate gate;
        gate.open();
        IoPool pool(bench.files(), 1, std::ref(gate));
        ReadBatch batch(pool);
        ReadRequest tagged = bench.request(0);
        tagged.tag = {5, 6, 7};
        batch.submit({tagged, bench.request(1)}, ReadUrgency::demand);
        batch.wait();
        batch.submit({bench.doomed(2)}, ReadUrgency::speculative);
        CHECK(throws_io([&] { batch.wait(); }));

        const std::vector<IoEvent> events = gate.events();
        CHECK(events.size() == 3);
        CHECK(events[0].request.tag.layer == 5 && events[0].request.tag.expert == 6 && events[0].request.tag.part == 7);
        uint64_t total = 0;
        for (const IoEvent & event : events) {
            const ReadRequest & r = event.request;
            CHECK(event.lane == 0);
            CHECK(event.latency_ns >= 0);
            CHECK(event.read_begin == (bench.files().direct() ? align_down(r.offset) : r.offset));
            if (r.shard == 0) {
                CHECK(event.read_begin + event.read_bytes >= r.offset + r.size);
            } else {
                CHECK(event.read_bytes == 0);
            }
            total += event.read_bytes;
        }
        const IoCounters counters = pool.counters();
        CHECK(counters.reads == 3 && counters.read_bytes == total);
        CHECK(counters.speculative_reads == 1 && counters.speculative_read_bytes == 0);
    }
}

void all_lanes_read_at_the_same_time() {
    const Bench bench(40);
    Gate gate;
    IoPool pool(bench.files(), IoPool::kMaxLanes, std::ref(gate));
    ReadBatch batch(pool);
    batch.submit(bench.requests(0, 40), ReadUrgency::demand);
    gate.await_arrivals(IoPool::kMaxLanes);
    std::set<int> lanes;
    for (const IoEvent & event : gate.events()) {
        lanes.insert(event.lane);
    }
    CHECK(lanes.size() == IoPool::kMaxLanes);
    CHECK(*lanes.begin() == 0 && *lanes.rbegin() == IoPool::kMaxLanes - 1);
    gate.open();
    batch.wait();
    for (uint32_t i = 0; i < 40; ++i) {
        CHECK(bench.arrived(i));
    }
}

void lanes_are_limited() {
    const Bench bench(1);
    for (const int lanes : {0, 17}) {
        try {
            const IoPool pool(bench.files(), lanes);
            CHECK(false);
        } catch (const Error & e) {
            CHECK(e.code() == ExitCode::usage);
        }
    }
}

}  // namespace

int main() {
    check::run("direct reads are exact", [] { reads_are_exact(true); });
    check::run("buffered reads are exact", [] { reads_are_exact(false); });
    check::run("demand overtakes queued speculation", demand_overtakes_queued_speculation);
    check::run("cancel takes back what is queued and nothing else", cancel_takes_back_what_is_queued_and_nothing_else);
    check::run("stop leaves nothing in flight", stop_leaves_nothing_in_flight);
    check::run("wait_new returns each request once", wait_new_returns_each_request_once);
    check::run("an abandoned batch takes back what is queued", an_abandoned_batch_takes_back_what_is_queued);
    check::run("an abandoned batch waits for what is in flight", an_abandoned_batch_waits_for_what_is_in_flight);
    check::run("a failed read surfaces where it is waited for", a_failed_read_surfaces_where_it_is_waited_for);
    check::run("failed speculation harms nothing else", failed_speculation_harms_nothing_else);
    check::run("I/O time runs while something is unserved", io_time_runs_while_something_is_unserved);
    check::run("the observer sees what is counted", the_observer_sees_what_is_counted);
    check::run("all lanes read at the same time", all_lanes_read_at_the_same_time);
    check::run("lanes are limited", lanes_are_limited);
    return check::result();
}
