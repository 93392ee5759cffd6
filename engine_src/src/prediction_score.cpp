#include "prediction_score.h"

#include "json.h"

#include <algorithm>
#include <cstdio>

namespace moe {

namespace {

// Below this the figures of the other predictors are not to be trusted either.
constexpr double kTrustedControl = 0.999;

constexpr std::array<const char *, kPredictors> kKeys = {"stale_gate", "stale_gate_2", "previous_token", "control"};
constexpr std::array<const char *, kPredictors> kTitles = {"stale gate, 1 layer early", "stale gate, 2 layers early",
                                                           "previous token", "control, own input"};

PredictionTally & operator+=(PredictionTally & sum, const PredictionTally & other) {
    sum.routings += other.routings;
    sum.exact += other.exact;
    sum.slots += other.slots;
    sum.slots_hit += other.slots_hit;
    return sum;
}

PredictionTally scored(const int32_t * predicted, const int32_t * chosen, uint32_t k) {
    const auto hit = static_cast<uint64_t>(std::count_if(chosen, chosen + k, [&](int32_t expert) {
        return std::find(predicted, predicted + k, expert) != predicted + k;
    }));
    return {1, hit == k ? uint64_t{1} : uint64_t{0}, k, hit};
}

uint64_t most_routings(const std::array<PredictionTally, kPredictors> & tallies) {
    uint64_t n = 0;
    for (const PredictionTally & tally : tallies) {
        n = std::max(n, tally.routings);
    }
    return n;
}

template <class... Args>
std::string formatted(const char * format, Args... args) {
    char line[160];
    std::snprintf(line, sizeof(line), format, args...);
    return line;
}

std::string percent(uint64_t part, uint64_t whole) {
    return whole == 0 ? "-" : formatted("%.1f", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string tally_json(const PredictionTally & tally) {
    return JsonObject()
        .number("routings", tally.routings)
        .number("exact", tally.exact)
        .number("slots", tally.slots)
        .number("slots_hit", tally.slots_hit)
        .str();
}

}  // namespace

std::optional<double> PredictionTally::overlap() const {
    return slots == 0 ? std::nullopt
                      : std::optional<double>(static_cast<double>(slots_hit) / static_cast<double>(slots));
}

void PredictionScore::add(Predictor predictor, uint32_t layer, const int32_t * predicted, const int32_t * chosen,
                          uint32_t k) {
    layers_[layer][static_cast<size_t>(predictor)] += scored(predicted, chosen, k);
}

PredictionTally PredictionScore::total(Predictor predictor) const {
    PredictionTally sum;
    for (const auto & [layer, tallies] : layers_) {
        sum += tallies[static_cast<size_t>(predictor)];
    }
    return sum;
}

std::string PredictionScore::json() const {
    JsonObject predictors;
    for (size_t p = 0; p < kPredictors; ++p) {
        predictors.raw(kKeys[p], tally_json(total(static_cast<Predictor>(p))));
    }
    std::string layers;
    for (const auto & [layer, tallies] : layers_) {
        JsonObject row;
        row.number("layer", layer).number("routings", most_routings(tallies));
        for (size_t p = 0; p < kPredictors; ++p) {
            row.number(kKeys[p], tallies[p].overlap());
        }
        layers += (layers.empty() ? "" : ",") + row.str();
    }
    return JsonObject()
        .raw("predictors", predictors.str())
        .number("unscored_routings", unscored_)
        .raw("layers", "[" + layers + "]")
        .str();
}

std::string PredictionScore::table() const {
    std::string text = "experts known in advance, % of chosen  slots  whole  scored routings   slots\n";
    for (size_t p = 0; p < kPredictors; ++p) {
        const PredictionTally tally = total(static_cast<Predictor>(p));
        text += formatted("  %-35s %6s %6s %16llu %7llu\n", kTitles[p], percent(tally.slots_hit, tally.slots).c_str(),
                          percent(tally.exact, tally.routings).c_str(),
                          static_cast<unsigned long long>(tally.routings),
                          static_cast<unsigned long long>(tally.slots));
    }
    text += "  " + std::to_string(unscored_) + " routings had no stale gate to rank them\n";

    const std::optional<double> control = total(Predictor::control).overlap();
    if (control && *control < kTrustedControl) {
        text += formatted("warning: the control finds %.3f %% of the slots, not the %.1f %% it must find;\n",
                          100.0 * *control, 100.0 * kTrustedControl) +
                "         these figures rank something other than the model's router, do not use them\n";
    }

    text += "layer  stale stale-2   prev   ctrl  routings\n";
    for (const auto & [layer, tallies] : layers_) {
        text += formatted("%5u", layer);
        for (size_t p = 0; p < kPredictors; ++p) {
            const int width = static_cast<Predictor>(p) == Predictor::stale_gate_2 ? 7 : 6;
            text += formatted(" %*s", width, percent(tallies[p].slots_hit, tallies[p].slots).c_str());
        }
        text += formatted(" %9llu\n", static_cast<unsigned long long>(most_routings(tallies)));
    }
    return text;
}

bool ControlWatchdog::add(const int32_t * predicted, const int32_t * chosen, uint32_t k) {
    if (!armed_) {
        return false;
    }
    tally_ += scored(predicted, chosen, k);
    const bool looks = tally_.routings % kInterval == 0 && tally_.slots >= kMinSlots;
    if (looks && *tally_.overlap() < kMinControl) {
        armed_ = false;
    }
    return !armed_;
}

std::string ControlWatchdog::json() const {
    if (armed_) {
        return "null";
    }
    return JsonObject().number("after_slots", tally_.slots).number("control", tally_.overlap()).str();
}

}  // namespace moe
