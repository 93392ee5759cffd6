// How well a router's choice is known in advance: predictions scored against the routing that then happened.
// Pure counting; it changes nothing and reads nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace moe {

enum class Predictor : size_t {
    stale_gate,      // this layer's router on the router input of the MoE layer before
    stale_gate_2,    // ... of the one two before
    previous_token,  // what this layer routed for the previous token
    control,         // this layer's router on its own input: what does not reach 100 % is a fault of the instrument
};
constexpr size_t kPredictors = 4;

// One predictor's record. Each predictor has its own denominators: not all can rank every routing.
struct PredictionTally {
    uint64_t routings = 0;
    uint64_t exact = 0;  // routings predicted as a whole, in any order
    uint64_t slots = 0;
    uint64_t slots_hit = 0;

    std::optional<double> overlap() const;  // share of slots hit; empty where nothing was scored
};

class PredictionScore {
public:
    // One routing of one token: `chosen` are the k experts of the router, `predicted` the first k of the prediction,
    // each without repetition. Order does not matter. `layer` is the model's block number.
    void add(Predictor predictor, uint32_t layer, const int32_t * predicted, const int32_t * chosen, uint32_t k);

    // A routing that the stale gate could not rank: no MoE layer before it, or a router not known yet.
    void unscored() { ++unscored_; }

    PredictionTally total(Predictor predictor) const;

    // `summary.prediction`. A layer's `routings` are those of its most often scored predictor.
    std::string json() const;

    // The report for people: totals, a warning when the control fails, and one row per MoE layer.
    std::string table() const;

private:
    using Tallies = std::array<PredictionTally, kPredictors>;

    std::map<uint32_t, Tallies> layers_;
    uint64_t unscored_ = 0;
};

// Switches a predictor off for good when its control fails: it then ranks something other than the model's router,
// and what it reads is wasted. Looks at everything scored so far every 512 routings, once 2048 slots are known.
class ControlWatchdog {
public:
    static constexpr uint64_t kInterval = 512;  // routings
    static constexpr uint64_t kMinSlots = 2048;
    static constexpr double kMinControl = 0.98;

    // One routing of the control. True when this is the one that disarms; without effect afterwards.
    bool add(const int32_t * predicted, const int32_t * chosen, uint32_t k);

    bool armed() const { return armed_; }

    // `summary.predictor_disarmed`: null while armed, else the state at that moment.
    std::string json() const;

private:
    PredictionTally tally_;
    bool armed_ = true;
};

}  // namespace moe
