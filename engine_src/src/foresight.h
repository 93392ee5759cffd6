// What is done about experts before a layer asks for them: predictions from the previous token or from an earlier
// layer's router input, used to keep and to read experts ahead, or only scored.
#pragma once

#include "call_info.h"
#include "catalog.h"
#include "expert_store.h"
#include "moe_graph.h"
#include "prediction_score.h"
#include "ranking_thread.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moe {

struct ForesightOptions {
    uint32_t prefetch = 0;          // layers ahead for which the previous token's routing is speculated on
    bool predict = false;           // stale-gate prediction drives retention and speculation
    uint32_t speculate_max = 2;     // experts a layer, at most; 0: retention only
    uint32_t horizon = 2;           // layers between the router input that is used and the layer it is used for
    bool log = false;               // score all predictors
    float drop_fraction = 0;        // experts that dropping would not read are not speculated on either; 0: no dropping
};

// For decoding one token at a time; prompts only teach it the last token's routing.
class Foresight {
public:
    // Both must outlive it.
    Foresight(const Catalog & catalog, ExpertStore & store, const ForesightOptions & options);

    bool wants_router_input(const CallInfo & call) const {
        return call.phase == Phase::decode && (options_.log || (options_.predict && watchdog_.armed()));
    }

    // Routers as the model's graph states them. Throws Error(model) when a prediction is asked for and none can be read.
    void learn(const MoeGraph & graph, const CallInfo & call);

    // The last token's row of the block's router input is ready.
    void on_router_input(const ggml_tensor * input, uint32_t block);

    // The last token's experts, best first.
    void on_routing(const CallInfo & call, uint32_t block, const std::vector<int32_t> & chosen);

    // The block has what it needs, or has asked for it: lanes may look ahead.
    void on_experts(const CallInfo & call, uint32_t block);

    // Rankings read the model's routers: none is under way any more once this has returned.
    void stop() { thread_.reset(); }

    const PredictionScore * score() const { return options_.log ? &score_ : nullptr; }
    const ControlWatchdog & watchdog() const { return watchdog_; }

private:
    // Places of the ranking thread: one of each kind per block.
    enum Kind : size_t { kStale, kStale2, kControl, kKinds };
    size_t place(Kind kind, uint32_t block) const { return kind * n_blocks_ + block; }

    bool checks_control(uint32_t block) const;
    void add_task(Kind kind, uint32_t block);
    void score(uint32_t block, const std::vector<int32_t> & chosen);
    void speculate_on_previous_token(uint32_t block);
    void act_on_prediction(uint32_t target);
    void check_controls();

    const Catalog & catalog_;
    ExpertStore & store_;
    const ForesightOptions options_;
    const uint32_t n_blocks_;
    std::vector<std::optional<RouterRule>> rules_;
    std::vector<std::vector<int32_t>> previous_;  // per block: routing of the last token that was seen
    std::vector<RankingThread::Task> tasks_;      // of the submission that is being put together
    std::vector<bool> control_due_;               // per block: a control ranking that is to be compared
    std::vector<std::vector<int32_t>> control_chosen_;  // with this, empty until it is known
    uint64_t n_tokens_ = 0;
    uint32_t top_k_ = 0;
    PredictionScore score_;
    ControlWatchdog watchdog_;
    uint64_t control_slots_ = 0;
    std::optional<RankingThread> thread_;  // last: it must end before what it works on
};

}  // namespace moe
