#include "layer_dump.h"

#include "json.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

namespace moe {

namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "dumps are defined as little-endian numbers");

// "0, 2 to 7"
std::string ranges(const std::set<uint32_t> & numbers) {
    std::string text;
    for (auto it = numbers.begin(); it != numbers.end();) {
        const uint32_t first = *it;
        uint32_t last = first;
        while (++it != numbers.end() && *it == last + 1) {
            last = *it;
        }
        text += (text.empty() ? "" : ", ") + std::to_string(first);
        if (last != first) {
            text += (last == first + 1 ? ", " : " to ") + std::to_string(last);
        }
    }
    return text;
}

const MoeBlock & find_block(const MoeDump & request, const Catalog & catalog) {
    const MoeBlock * found = nullptr;
    std::set<uint32_t> layers;
    for (const MoeBlock & block : catalog.blocks()) {
        layers.insert(block.layer);
        if (block.layer != request.layer) {
            continue;
        }
        if (found != nullptr) {
            throw Error(ExitCode::model, "--moe-dump: layer " + std::to_string(request.layer) +
                                             " has two sets of routed experts, a dump holds one");
        }
        found = &block;
    }
    if (found == nullptr) {
        throw Error(ExitCode::usage, "--moe-dump: layer " + std::to_string(request.layer) +
                                         " has no routed experts; the layers that have are " + ranges(layers));
    }
    return *found;
}

}  // namespace

LayerDump::LayerDump(const MoeDump & request, const Catalog & catalog, const DumpHead & head)
    : request_(request),
      block_(find_block(request, catalog)),
      head_(head),
      layer_suffix_("-" + std::to_string(request.layer)),
      meta_(dump_path(request, "meta"), "dump's meta") {
    for (const char * name : kDumpNames) {
        columns_.emplace_back();
        columns_.back().file = std::make_unique<LineFile>(dump_path(request, name), std::string("dump's ") + name);
    }
}

bool LayerDump::is_expert_matmul(const ggml_tensor & node) const {
    return node.op == GGML_OP_MUL_MAT_ID &&
           std::any_of(block_.parts.begin(), block_.parts.end(),
                       [&](const ExpertPart & part) { return part.tensor == node.src[0]->name; });
}

// The experts' weighted outputs are added up one by one; a single one is copied.
bool LayerDump::is_output(const ggml_tensor & node) const {
    const ggml_tensor * last = node.op == GGML_OP_ADD ? node.src[1] : node.op == GGML_OP_CONT ? node.src[0] : nullptr;
    return last != nullptr && weighted_ != nullptr && last->view_src == weighted_ &&
           last->view_offs == static_cast<size_t>(n_used_ - 1) * weighted_->nb[1] &&
           (node.op == GGML_OP_ADD) == (n_used_ > 1);
}

// The quantity to be copied when this node has been computed.
std::optional<LayerDump::Quantity> LayerDump::completes(const ggml_tensor & node) const {
    const auto named = [&](const char * name) { return node.name == name + layer_suffix_; };
    const auto fresh = [&](Quantity quantity) { return column(quantity).n_rows < 0; };
    if (fresh(Quantity::logits) && node.op == GGML_OP_MUL_MAT && named("ffn_moe_logits")) {
        return Quantity::logits;
    }
    if (fresh(Quantity::probs) && named("ffn_moe_probs")) {
        return Quantity::probs;
    }
    if (fresh(Quantity::input) && is_expert_matmul(node)) {
        return Quantity::input;
    }
    if (fresh(Quantity::weights) && node.op == GGML_OP_MUL && named("ffn_moe_weighted")) {
        return Quantity::weights;
    }
    if (fresh(Quantity::output) && is_output(node)) {
        return Quantity::output;
    }
    return std::nullopt;
}

bool LayerDump::wants(const ggml_tensor & node) noexcept {
    if (failure_) {
        return false;
    }
    if (node.op == GGML_OP_ARGSORT && node.name == "ffn_moe_argsort" + layer_suffix_) {
        argsort_ = &node;
    }
    return completes(node).has_value();
}

void LayerDump::computed(const ggml_tensor & node) noexcept {
    try {
        switch (const ggml_tensor & t = node; completes(node).value()) {
            case Quantity::logits: {
                const ggml_tensor & in = *t.src[1];
                take(Quantity::router_input, in, GGML_TYPE_F32, in.ne[0], in.ne[1], in.nb[1]);
                take(Quantity::logits, t, GGML_TYPE_F32, t.ne[0], t.ne[1], t.nb[1]);
                break;
            }
            case Quantity::probs: take(Quantity::probs, t, GGML_TYPE_F32, t.ne[0], t.ne[1], t.nb[1]); break;
            case Quantity::input: {
                const ggml_tensor & in = *t.src[1];
                if (argsort_ == nullptr || in.ne[1] != 1) {
                    throw Error(ExitCode::model, "--moe-dump: this architecture's experts have inputs of their own, or "
                                                 "a routing of an unknown kind");
                }
                n_used_ = t.ne[1];
                take(Quantity::input, in, GGML_TYPE_F32, in.ne[0], in.ne[2], in.nb[2]);
                // Best first; forced and dropped routes have been written here too.
                take(Quantity::ids, *argsort_, GGML_TYPE_I32, n_used_, argsort_->ne[1], argsort_->nb[1]);
                break;
            }
            case Quantity::weights: {
                const ggml_tensor & w = *t.src[1];
                weighted_ = &node;
                take(Quantity::weights, w, GGML_TYPE_F32, w.ne[1], w.ne[2], w.nb[2]);
                break;
            }
            default: take(Quantity::output, t, GGML_TYPE_F32, t.ne[0], t.ne[1], t.nb[1]); break;
        }
    } catch (const Error & error) {
        failure_ = error;
    } catch (const std::exception & error) {
        failure_ = Error(ExitCode::other, error.what());
    }
}

// Appends `n_rows` rows of `width` numbers that lie `stride` bytes apart.
void LayerDump::take(Quantity quantity, const ggml_tensor & tensor, ggml_type type, int64_t width, int64_t n_rows,
                     size_t stride) {
    Column & to = column(quantity);
    if (tensor.type != type || tensor.nb[0] != sizeof(int32_t) || (to.width != 0 && to.width != width)) {
        throw Error(ExitCode::model, std::string("--moe-dump: '") + tensor.name + "' of this architecture does not " +
                                         "have the form of " + kDumpNames[static_cast<size_t>(quantity)] + " in a dump");
    }
    to.width = width;
    to.n_rows = n_rows;
    const auto * data = static_cast<const std::byte *>(tensor.data);
    const size_t row_bytes = static_cast<size_t>(width) * sizeof(int32_t);
    if (row_bytes == stride) {
        to.file->append(data, row_bytes * static_cast<size_t>(n_rows));
        return;
    }
    for (int64_t row = 0; row < n_rows; ++row) {
        to.file->append(data + static_cast<size_t>(row) * stride, row_bytes);
    }
}

void LayerDump::begin_call(const CallInfo & call) {
    call_ = call;
    argsort_ = nullptr;
    weighted_ = nullptr;
    for (Column & each : columns_) {
        each.n_rows = -1;
    }
}

void LayerDump::end_call() {
    if (failure_) {
        throw Error(*failure_);
    }
    const int64_t n_rows = column(Quantity::input).n_rows;
    for (size_t q = 0; q < columns_.size(); ++q) {
        if (columns_[q].n_rows < 0 || columns_[q].n_rows != n_rows) {
            throw Error(ExitCode::model, "--moe-dump: the " + std::string(kDumpNames[q]) + " of layer " +
                                             std::to_string(request_.layer) + " cannot be found in this architecture");
        }
    }
    const auto rows = static_cast<uint64_t>(n_rows);
    JsonObject call;
    call.text("phase", std::string(call_.phase == Phase::prefill ? "prefill" : "decode"))
        .number("first_position", call_.position(0, rows))
        .number("tokens", call_.n_tokens)
        .number("rows", rows);
    calls_ += (calls_.empty() ? "" : ",") + call.str();
}

std::string LayerDump::meta() const {
    JsonObject columns;
    for (size_t q = 0; q < columns_.size(); ++q) {
        JsonObject form;
        form.text("type", std::string(q == static_cast<size_t>(Quantity::ids) ? "i32" : "f32"))
            .number("width", columns_[q].width);
        columns.raw(kDumpNames[q], form.str());
    }
    JsonObject object;
    object.text("type", std::string("moe_dump"))
        .number("version", 1)
        .text("model", head_.model)
        .text("arch", head_.arch)
        .number("layer", request_.layer)
        .number("n_expert", block_.n_expert)
        .number("top_k", head_.n_expert_used)
        .boolean("routing_edited", head_.routing_edited)
        .raw("columns", columns.str())
        .raw("calls", "[" + calls_ + "]");
    return object.str();
}

void LayerDump::close() {
    for (Column & each : columns_) {
        each.file->close();
    }
    meta_.write(meta());
    meta_.close();
}

std::optional<LayerDump> open_dump(const Options & options, const ModelFacts & facts) {
    if (!options.moe_dump) {
        return std::nullopt;
    }
    DumpHead head;
    head.model = facts.path;
    head.arch = facts.arch;
    head.n_expert_used = options.expert_used ? static_cast<uint32_t>(*options.expert_used) : facts.n_expert_used;
    head.routing_edited = options.forced_routes || options.drop_cold_experts;
    return std::optional<LayerDump>(std::in_place, *options.moe_dump, Catalog::read(options.model), head);
}

}  // namespace moe
