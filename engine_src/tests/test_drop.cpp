// Which experts are dropped, what replaces them, and that the routing's mass survives.
#include "drop.h"

#include "check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

using moe::DropRule;
using moe::drop_cold_experts;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
    const char * name;
    DropRule rule;
    std::vector<float> weights;   // of experts 10, 11, 12, ...
    std::set<int32_t> resident;
    std::vector<uint8_t> dropped;
    std::vector<int32_t> experts;
    std::vector<float> weights_after;
};

const std::vector<Case> kCases = {
    {"light and cold goes, its mass to the survivors", {0.5f, true}, {0.5f, 0.25f, 0.25f, 0.0f}, {},
     {0, 0, 0, 1}, {10, 11, 12, 10}, {0.5f, 0.25f, 0.25f, 0.0f}},
    {"survivors are scaled alike", {0.75f, true}, {0.5f, 0.25f, 0.125f, 0.125f}, {},
     {0, 0, 1, 1}, {10, 11, 10, 10}, {0.5f / 0.75f, 0.25f / 0.75f, 0, 0}},
    {"without renormalisation survivors stay", {0.75f, false}, {0.5f, 0.25f, 0.125f, 0.125f}, {},
     {0, 0, 1, 1}, {10, 11, 10, 10}, {0.5f, 0.25f, 0, 0}},
    {"a resident expert stays however light", {1, true}, {0.5f, 0.25f, 0.125f, 0.125f}, {13},
     {0, 0, 1, 0}, {10, 11, 10, 13}, {0.5f / 0.875f, 0.25f / 0.875f, 0, 0.125f / 0.875f}},
    {"lighter than the threshold, not as light", {0.5f, true}, {0.5f, 0.25f, 0.125f, 0.125f}, {},
     {0, 0, 0, 0}, {10, 11, 12, 13}, {0.5f, 0.25f, 0.125f, 0.125f}},
    {"the heaviest need not come first", {1, false}, {0.125f, 0.5f, 0.375f}, {},
     {1, 0, 0}, {11, 11, 12}, {0, 0.5f, 0.375f}},
    {"the first of equals is the heaviest", {1, false}, {0.125f, 0.4375f, 0.4375f}, {},
     {1, 0, 0}, {11, 11, 12}, {0, 0.4375f, 0.4375f}},
    {"the heaviest stays whatever the fraction", {3, true}, {0.5f, 0.5f}, {}, {0, 1}, {10, 10}, {1, 0}},
    {"equal weights are not lighter than uniform", {1, true}, {0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f}, {},
     {0, 0, 0, 0, 0, 0, 0, 0}, {10, 11, 12, 13, 14, 15, 16, 17}, {0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f}},
    {"fraction 0 drops nothing, not even weight 0", {0, true}, {1, 0}, {}, {0, 0}, {10, 11}, {1, 0}},
    {"k = 1 drops nothing", {1, true}, {0.01f}, {}, {0}, {10}, {0.01f}},
    {"scaled weights: uniform is relative to their mass", {0.5f, true}, {2, 0.25f, 0.25f}, {},
     {0, 1, 1}, {10, 10, 10}, {2.5f, 0, 0}},
    {"unnormalised weights likewise", {0.5f, true}, {0.04f, 0.03f, 0.03f}, {}, {0, 0, 0}, {10, 11, 12},
     {0.04f, 0.03f, 0.03f}},
    {"weights that are all zero", {1, true}, {0, 0, 0}, {}, {0, 0, 0}, {10, 11, 12}, {0, 0, 0}},
    {"an infinite weight", {1, true}, {0.5f, kInf, 0.1f}, {}, {0, 0, 0}, {10, 11, 12}, {0.5f, kInf, 0.1f}},
};

void cases_by_hand() {
    for (const Case & c : kCases) {
        const auto k = static_cast<uint32_t>(c.weights.size());
        std::vector<float> weights = c.weights;
        std::vector<int32_t> experts(k);
        std::iota(experts.begin(), experts.end(), 10);
        std::vector<uint8_t> dropped;
        const uint32_t n = drop_cold_experts(
            c.rule, experts.data(), weights.data(), k, [&](int32_t e) { return c.resident.count(e) != 0; }, dropped);
        bool near = true;
        for (uint32_t i = 0; i < k; ++i) {
            near = near && (weights[i] == c.weights_after[i] || std::abs(weights[i] - c.weights_after[i]) < 1e-6f);
        }
        const auto expect = [&](bool ok, const char * what) {
            check::that(ok, (std::string(c.name) + ": " + what).c_str(), __FILE__, __LINE__);
        };
        expect(near, "weights");
        expect(experts == c.experts, "experts");
        expect(dropped == c.dropped, "dropped");
        expect(n == static_cast<uint32_t>(std::count(c.dropped.begin(), c.dropped.end(), 1)), "count");
    }
}

void nan_drops_nothing() {
    for (size_t position = 0; position < 3; ++position) {
        std::vector<float> weights = {0.9f, 0.05f, 0.05f};
        weights[position] = kNan;
        const std::vector<float> before = weights;
        std::vector<int32_t> experts = {3, 1, 2};
        std::vector<uint8_t> dropped;
        const auto cold = [](int32_t) { return false; };
        CHECK(drop_cold_experts({1, true}, experts.data(), weights.data(), 3, cold, dropped) == 0);
        CHECK((experts == std::vector<int32_t>{3, 1, 2}));
        for (size_t i = 0; i < 3; ++i) {
            CHECK(i == position ? std::isnan(weights[i]) : weights[i] == before[i]);
        }
    }
}

void properties_hold_at_random() {
    std::mt19937 random(20261129);
    std::uniform_real_distribution<float> unit(0, 1);
    uint64_t n_dropped_total = 0;
    for (int round = 0; round < 20000; ++round) {
        const uint32_t k = 1 + random() % 16;
        const DropRule rule{round % 10 == 0 ? 0.0f : unit(random), round % 3 != 0};
        const float scale = round % 2 == 0 ? 1.0f : 2.5f;
        std::vector<float> weights(k);
        std::vector<int32_t> experts(k);
        std::set<int32_t> resident;
        for (uint32_t i = 0; i < k; ++i) {
            weights[i] = scale * std::exp(4 * unit(random) - 4);
            experts[i] = static_cast<int32_t>(i * 7 + random() % 7);
            if (unit(random) < 0.4f) {
                resident.insert(experts[i]);
            }
        }
        const std::vector<float> weights_before = weights;
        const std::vector<int32_t> experts_before = experts;
        std::vector<uint8_t> dropped;
        const uint32_t n = drop_cold_experts(
            rule, experts.data(), weights.data(), k, [&](int32_t e) { return resident.count(e) != 0; }, dropped);
        n_dropped_total += n;

        const double before = std::accumulate(weights_before.begin(), weights_before.end(), 0.0);
        const double after = std::accumulate(weights.begin(), weights.end(), 0.0);
        const auto heaviest = static_cast<size_t>(
            std::max_element(weights_before.begin(), weights_before.end()) - weights_before.begin());
        CHECK(dropped.size() == k);
        CHECK(dropped[heaviest] == 0);
        CHECK(rule.fraction > 0 || n == 0);
        uint32_t n_marked = 0;
        double kept = 0;
        for (uint32_t i = 0; i < k; ++i) {
            const bool light = static_cast<double>(weights_before[i]) < static_cast<double>(rule.fraction) * before / k;
            const bool expected = i != heaviest && light && resident.count(experts_before[i]) == 0;
            CHECK((dropped[i] != 0) == expected);
            CHECK(experts[i] == (expected ? experts_before[heaviest] : experts_before[i]));
            CHECK(expected ? weights[i] == 0 : weights[i] >= weights_before[i]);
            n_marked += dropped[i];
            kept += expected ? 0 : static_cast<double>(weights_before[i]);
        }
        CHECK(n == n_marked);
        CHECK(std::abs(after - (rule.renormalise ? before : kept)) <= 1e-6 * before);
    }
    CHECK(n_dropped_total > 1000);
}

}  // namespace

int main() {
    check::run("cases worked out by hand", cases_by_hand);
    check::run("NaN anywhere: nothing is dropped", nan_drops_nothing);
    check::run("random routings keep mass, heaviest and residents", properties_hold_at_random);
    return check::result();
}
