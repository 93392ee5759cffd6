#include "foresight.h"

#include "error.h"

#include <algorithm>

namespace moe {

Foresight::Foresight(const Catalog & catalog, ExpertStore & store, const ForesightOptions & options)
    : catalog_(catalog),
      store_(store),
      options_(options),
      n_blocks_(static_cast<uint32_t>(catalog.blocks().size())),
      rules_(n_blocks_),
      previous_(n_blocks_),
      control_due_(n_blocks_, false),
      control_chosen_(n_blocks_) {
    if (options.log || options.predict) {
        thread_.emplace(kKinds * n_blocks_);
    }
}

void Foresight::learn(const MoeGraph & graph, const CallInfo & call) {
    if (!thread_) {
        return;
    }
    std::string why_not = "no routing was found in its graph";
    bool any = false;
    for (uint32_t b = 0; b < n_blocks_; ++b) {
        if (graph.blocks[b].router) {
            rules_[b] = graph.blocks[b].router;
        } else if (!graph.blocks[b].no_router.empty()) {
            why_not = graph.blocks[b].no_router;
        }
        any = any || rules_[b].has_value();
    }
    if (!any) {
        throw Error(ExitCode::model, "this model's routers cannot be run ahead of their layers: " + why_not);
    }
    if (call.phase == Phase::decode) {
        ++n_tokens_;
        for (uint32_t b = 0; b < n_blocks_; ++b) {
            thread_->empty(place(kStale, b));
            thread_->empty(place(kStale2, b));
        }
    }
}

// Until the watchdog has seen enough to judge, every routing is checked; then one layer a token, in turn: a router
// that is read correctly stays so, and a control costs as much as a prediction.
bool Foresight::checks_control(uint32_t block) const {
    return control_slots_ < 2 * ControlWatchdog::kMinSlots || n_tokens_ % n_blocks_ == block;
}

void Foresight::add_task(Kind kind, uint32_t block) {
    if (block < n_blocks_ && rules_[block]) {
        tasks_.push_back({*rules_[block], place(kind, block)});
    }
}

void Foresight::on_router_input(const ggml_tensor * input, uint32_t block) {
    check_controls();
    tasks_.clear();
    if (options_.log) {
        add_task(kControl, block);
        add_task(kStale, block + 1);
        add_task(kStale2, block + 2);
    } else {
        add_task(options_.horizon == 1 ? kStale : kStale2, block + options_.horizon);
        if (checks_control(block)) {
            add_task(kControl, block);
            control_due_[block] = true;
            control_chosen_[block].clear();
        }
    }
    top_k_ = static_cast<uint32_t>(previous_[block].size());
    if (tasks_.empty() || top_k_ == 0) {
        return;
    }
    const auto * row = static_cast<const std::byte *>(input->data) + static_cast<size_t>(input->ne[1] - 1) * input->nb[1];
    thread_->submit(reinterpret_cast<const float *>(row), static_cast<uint32_t>(input->ne[0]), top_k_, tasks_);
}

void Foresight::on_routing(const CallInfo & call, uint32_t block, const std::vector<int32_t> & chosen) {
    if (call.phase == Phase::decode && options_.log) {
        score(block, chosen);
    }
    if (call.phase == Phase::decode && control_due_[block] && control_chosen_[block].empty()) {
        control_chosen_[block] = chosen;
    }
    previous_[block] = chosen;
}

void Foresight::score(uint32_t block, const std::vector<int32_t> & chosen) {
    const uint32_t layer = catalog_.block(block).layer;
    const auto k = static_cast<uint32_t>(chosen.size());
    const auto add = [&](Predictor predictor, Kind kind) -> const RankedExperts * {
        const RankedExperts * ranked = thread_->fetch(place(kind, block), true);
        if (ranked == nullptr || ranked->experts.size() != k) {
            return nullptr;
        }
        score_.add(predictor, layer, ranked->experts.data(), chosen.data(), k);
        return ranked;
    };
    const RankedExperts * control = add(Predictor::control, kControl);
    if (control != nullptr && options_.predict && watchdog_.add(control->experts.data(), chosen.data(), k)) {
        store_.stop_speculation();
    }
    add(Predictor::stale_gate_2, kStale2);
    if (add(Predictor::stale_gate, kStale) == nullptr) {
        score_.unscored();
    }
    if (previous_[block].size() == k) {
        score_.add(Predictor::previous_token, layer, previous_[block].data(), chosen.data(), k);
    }
}

void Foresight::on_experts(const CallInfo & call, uint32_t block) {
    if (call.phase != Phase::decode) {
        return;
    }
    store_.collect_speculation();
    if (options_.prefetch > 0) {
        speculate_on_previous_token(block);
    }
    if (options_.predict && watchdog_.armed() && block + 1 < n_blocks_) {
        act_on_prediction(block + 1);
    }
}

void Foresight::speculate_on_previous_token(uint32_t block) {
    for (uint32_t ahead = 1; ahead <= options_.prefetch && block + ahead < n_blocks_; ++ahead) {
        for (const int32_t expert : previous_[block + ahead]) {
            store_.speculate(block + ahead, static_cast<uint32_t>(expert));
        }
    }
}

// With a horizon of two layers a ranking had a whole layer's time, and one that is late has missed its use. With a
// horizon of one it was asked for a moment ago, so there is nothing to do but to wait for it.
void Foresight::act_on_prediction(uint32_t target) {
    const Kind kind = options_.horizon == 1 ? kStale : kStale2;
    const RankedExperts * ranked = thread_->fetch(place(kind, target), options_.horizon == 1);
    if (ranked == nullptr) {
        return;
    }
    const auto k = static_cast<float>(ranked->experts.size());
    uint32_t speculated = 0;
    for (size_t rank = 0; rank < ranked->experts.size(); ++rank) {
        const auto expert = static_cast<uint32_t>(ranked->experts[rank]);
        if (store_.retain(target, expert)) {
            continue;
        }
        const bool would_be_dropped = rank > 0 && ranked->weights[rank] < options_.drop_fraction / k;
        if (speculated < options_.speculate_max && !would_be_dropped && store_.speculate(target, expert)) {
            ++speculated;
        }
    }
}

// Controls that have been ranked in the mean time, against what was routed of the same token: a later one, or a prompt,
// may have been routed since.
void Foresight::check_controls() {
    if (options_.log) {
        return;
    }
    for (uint32_t b = 0; b < n_blocks_; ++b) {
        if (!control_due_[b]) {
            continue;
        }
        const RankedExperts * ranked = thread_->fetch(place(kControl, b), false);
        const std::vector<int32_t> & chosen = control_chosen_[b];
        if (ranked == nullptr || chosen.empty()) {
            continue;
        }
        control_due_[b] = false;
        const auto k = static_cast<uint32_t>(chosen.size());
        if (ranked->experts.size() != k) {
            continue;
        }
        control_slots_ += k;
        if (watchdog_.add(ranked->experts.data(), chosen.data(), k)) {
            store_.stop_speculation();
            return;
        }
    }
}

}  // namespace moe
