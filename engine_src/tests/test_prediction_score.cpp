// Counting of predictions, the two forms of the report, and the watchdog on the control.
#include "prediction_score.h"

#include "check.h"

#include <string>
#include <vector>

namespace {

using moe::ControlWatchdog;
using moe::PredictionScore;
using moe::PredictionTally;
using moe::Predictor;

void add(PredictionScore & score, Predictor predictor, uint32_t layer, const std::vector<int32_t> & predicted,
         const std::vector<int32_t> & chosen) {
    score.add(predictor, layer, predicted.data(), chosen.data(), static_cast<uint32_t>(chosen.size()));
}

bool equal(const PredictionTally & tally, uint64_t routings, uint64_t exact, uint64_t slots, uint64_t hit) {
    return tally.routings == routings && tally.exact == exact && tally.slots == slots && tally.slots_hit == hit;
}

bool contains(const std::string & text, const std::string & part) { return text.find(part) != std::string::npos; }

void overlap_ignores_order() {
    PredictionScore score;
    add(score, Predictor::stale_gate, 3, {1, 2, 3, 4}, {4, 3, 2, 1});
    CHECK(equal(score.total(Predictor::stale_gate), 1, 1, 4, 4));
    add(score, Predictor::stale_gate, 3, {1, 2, 3, 4}, {9, 3, 8, 1});
    CHECK(equal(score.total(Predictor::stale_gate), 2, 1, 8, 6));
    add(score, Predictor::stale_gate, 3, {1, 2, 3, 4}, {5, 6, 7, 8});
    CHECK(equal(score.total(Predictor::stale_gate), 3, 1, 12, 6));
}

void only_the_first_k_predictions_count() {
    PredictionScore score;
    add(score, Predictor::control, 0, {1, 2, 3, 4}, {3, 4});
    CHECK(equal(score.total(Predictor::control), 1, 0, 2, 0));
}

void predictors_have_their_own_denominators() {
    PredictionScore score;
    add(score, Predictor::previous_token, 1, {1, 2}, {1, 3});
    add(score, Predictor::control, 1, {1, 3}, {1, 3});
    add(score, Predictor::control, 2, {1, 3}, {1, 3});
    CHECK(equal(score.total(Predictor::previous_token), 1, 0, 2, 1));
    CHECK(equal(score.total(Predictor::control), 2, 2, 4, 4));
    CHECK(equal(score.total(Predictor::stale_gate), 0, 0, 0, 0));
    CHECK(!score.total(Predictor::stale_gate).overlap());
    CHECK(score.total(Predictor::previous_token).overlap() == 0.5);
}

void json_of_nothing_and_of_something() {
    PredictionScore score;
    const std::string zero = R"({"routings":0,"exact":0,"slots":0,"slots_hit":0})";
    CHECK(score.json() == R"({"predictors":{"stale_gate":)" + zero + R"(,"stale_gate_2":)" + zero +
                              R"(,"previous_token":)" + zero + R"(,"control":)" + zero +
                              R"(},"unscored_routings":0,"layers":[]})");
    add(score, Predictor::control, 7, {1, 2}, {1, 2});
    add(score, Predictor::control, 7, {1, 2}, {1, 2});
    add(score, Predictor::stale_gate, 7, {1, 2}, {3, 2});
    add(score, Predictor::previous_token, 2, {1, 2}, {3, 4});
    score.unscored();
    score.unscored();
    CHECK(score.json() ==
          R"({"predictors":{"stale_gate":{"routings":1,"exact":0,"slots":2,"slots_hit":1},"stale_gate_2":)" + zero +
              R"(,"previous_token":{"routings":1,"exact":0,"slots":2,"slots_hit":0},)"
              R"("control":{"routings":2,"exact":2,"slots":4,"slots_hit":4}},"unscored_routings":2,"layers":[)"
              R"({"layer":2,"routings":1,"stale_gate":null,"stale_gate_2":null,"previous_token":0,"control":null},)"
              R"({"layer":7,"routings":2,"stale_gate":0.5,"stale_gate_2":null,"previous_token":null,"control":1}]})");
}

void table_tells_nothing_scored_from_nothing_hit() {
    PredictionScore score;
    add(score, Predictor::previous_token, 2, {1, 2}, {3, 4});
    add(score, Predictor::control, 2, {3, 4}, {3, 4});
    add(score, Predictor::control, 11, {3, 4}, {3, 4});
    score.unscored();
    const std::string table = score.table();
    CHECK(contains(table, "\n    2      -       -    0.0  100.0         1\n"));
    CHECK(contains(table, "\n   11      -       -      -  100.0         1\n"));
    CHECK(contains(table, "\n  stale gate, 1 layer early                -      -                0       0\n"));
    CHECK(contains(table, "\n  previous token                         0.0    0.0                1       2\n"));
    CHECK(contains(table, "1 routings had no stale gate"));
    CHECK(!contains(table, "\n    3 "));  // a layer without experts has no row
    CHECK(!contains(table, "warning"));
}

// 999 of 1000 slots are enough, 998 are not.
void table_warns_of_a_control_that_fails() {
    PredictionScore score;
    for (int i = 0; i < 499; ++i) {
        add(score, Predictor::control, 0, {1, 2}, {1, 2});
    }
    add(score, Predictor::control, 0, {1, 2}, {1, 3});
    CHECK(!contains(score.table(), "warning"));
    PredictionScore worse;
    for (int i = 0; i < 499; ++i) {
        add(worse, Predictor::control, 0, {1, 2}, {1, 2});
    }
    add(worse, Predictor::control, 0, {1, 2}, {4, 3});
    CHECK(contains(worse.table(), "warning: the control finds 99.800 % of the slots"));
    CHECK(!contains(PredictionScore().table(), "warning"));
}

// Feeds `n` routings of k = 8, of which the first `n_bad` are missed altogether. The routing that disarms, or 0.
uint64_t disarmed_at(ControlWatchdog & dog, uint64_t n, uint64_t n_bad) {
    const std::vector<int32_t> chosen = {0, 1, 2, 3, 4, 5, 6, 7};
    const std::vector<int32_t> wrong = {8, 9, 10, 11, 12, 13, 14, 15};
    for (uint64_t i = 1; i <= n; ++i) {
        if (dog.add(i <= n_bad ? wrong.data() : chosen.data(), chosen.data(), 8)) {
            return i;
        }
    }
    return 0;
}

void watchdog_disarms_below_98_percent() {
    ControlWatchdog good;
    CHECK(disarmed_at(good, 5000, 10) == 0);  // 502 of 512: 98.05 %
    CHECK(good.armed());
    CHECK(good.json() == "null");

    ControlWatchdog bad;
    CHECK(disarmed_at(bad, 5000, 11) == 512);  // 501 of 512: 97.85 %
    CHECK(!bad.armed());
    CHECK(bad.json() == R"({"after_slots":4096,"control":0.978515625})");
}

void watchdog_stays_disarmed() {
    ControlWatchdog dog;
    CHECK(disarmed_at(dog, 512, 512) == 512);
    const std::string state = dog.json();
    CHECK(disarmed_at(dog, 100000, 0) == 0);
    CHECK(!dog.armed());
    CHECK(dog.json() == state);
}

// Top-1 routings: 512 of them are 512 slots, too few to judge by; 2048 are enough.
void watchdog_waits_for_enough_slots() {
    ControlWatchdog dog;
    const int32_t chosen = 0;
    const int32_t wrong = 1;
    for (int i = 1; i <= 2047; ++i) {
        CHECK(!dog.add(&wrong, &chosen, 1));
    }
    CHECK(dog.armed());
    CHECK(dog.add(&wrong, &chosen, 1));
    CHECK(dog.json() == R"({"after_slots":2048,"control":0})");
}

}  // namespace

int main() {
    check::run("overlap counts experts, whatever their order", overlap_ignores_order);
    check::run("only the first k predictions count", only_the_first_k_predictions_count);
    check::run("every predictor has its own denominators", predictors_have_their_own_denominators);
    check::run("JSON: all keys, null where nothing was scored", json_of_nothing_and_of_something);
    check::run("table: '-' for nothing scored, 0.0 for nothing hit", table_tells_nothing_scored_from_nothing_hit);
    check::run("table warns of a control below 99.9 %", table_warns_of_a_control_that_fails);
    check::run("watchdog disarms below 98 %", watchdog_disarms_below_98_percent);
    check::run("watchdog stays disarmed", watchdog_stays_disarmed);
    check::run("watchdog waits for enough slots", watchdog_waits_for_enough_slots);
    return check::result();
}
