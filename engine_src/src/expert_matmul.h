// MUL_MAT_ID nodes computed by the CPU backend over experts that lie in slots instead of in the model's tensor.
//
// The node's weight is replaced by a tensor whose "experts" are the slots, and the routed ids by slot numbers.
// Kernel, arithmetic and the order of an expert's rows stay what they are in a plain run, hence the same bits.
#pragma once

#include "slot_memory.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace moe {

// The routed ids of a batch, in both directions. A pair is one (token, k-th choice): token * n_used + k.
struct Routing {
    int64_t n_used = 0;
    int64_t n_tokens = 0;
    std::vector<int32_t> ids;            // expert of each pair
    std::vector<uint32_t> experts;       // those routed to, ascending
    std::vector<uint32_t> first_pair;    // per expert (n_expert + 1): start of its range in `pairs`
    std::vector<int32_t> pairs;          // grouped by expert, ascending within

    size_t n_pairs() const { return ids.size(); }
    size_t n_pairs(uint32_t expert) const { return first_pair[expert + 1] - first_pair[expert]; }

    // From an ids tensor, which may be a strided view. Throws Error(other) for an id out of range.
    static Routing from_ids(const ggml_tensor * ids, uint32_t n_expert);

    bool equals(const ggml_tensor * other_ids) const;
};

struct ExpertSlot {
    uint32_t expert = 0;
    uint32_t slot = 0;
};

class ExpertMatmul {
public:
    ExpertMatmul();

    // Memory that run() takes at most for a batch of `n_tokens`, beside what the CPU backend needs for any node.
    static uint64_t scratch_bytes(uint64_t n_in, uint64_t n_out, uint64_t n_expert,
                                  const std::vector<SlotRegion> & regions, uint64_t n_tokens, uint64_t n_used);
    // The same for the number of slots, `n_slots_most` or fewer, with which it is most.
    static uint64_t scratch_bytes_most(uint64_t n_in, uint64_t n_out, uint64_t n_slots_most, uint64_t n_tokens,
                                       uint64_t n_used);

    // Makes the node multiply by slots when it is computed as part of its graph: the weight becomes the slots, the ids
    // become slot numbers. `where` holds every routed expert; `slots` is the node's matrix in all slots. False, and
    // nothing done, when the experts' slots are not of one size or too far apart for one call: then run() is the way.
    bool patch(ggml_tensor * node, const Routing & routing, const std::vector<ExpertSlot> & where,
               const PartSlots & slots);

    // Gives all patched nodes back what they had.
    void restore();

    // Computes the rows of `node` that are routed to the experts of `where`, experts without rows among them. Throws
    // Error(other) when the backend fails.
    void run(ggml_tensor * node, const Routing & routing, std::vector<ExpertSlot> where, const PartSlots & slots,
             ggml_backend_t cpu);

private:
    struct Range {  // experts in slots of one size
        const ExpertSlot * begin = nullptr;
        const ExpertSlot * end = nullptr;
        const PartRange * slots = nullptr;
        size_t n_pairs = 0;
        uint32_t span() const { return (end - 1)->slot - begin->slot + 1; }
    };

    void run_gathered(ggml_tensor * node, const Routing & routing, const Range & range, ggml_backend_t cpu);
    void compute(const ggml_tensor * node, const Range & range, ggml_tensor * input, ggml_tensor * ids, float * output,
                 ggml_backend_t cpu);
    ggml_tensor * leaf(ggml_type type, const int64_t (&ne)[3], const size_t (&nb)[2], void * data);

    struct ContextDeleter {
        void operator()(ggml_context * ctx) const { ggml_free(ctx); }
    };
    struct Patch {
        ggml_tensor * node = nullptr;
        ggml_tensor * weight = nullptr;  // what the node had
        ggml_tensor * ids = nullptr;
        ggml_tensor slots{};
        ggml_tensor slot_numbers{};
        std::vector<int32_t> numbers;
    };

    std::vector<std::unique_ptr<Patch>> patches_;  // the first n_patched_ are in use
    size_t n_patched_ = 0;
    std::unique_ptr<ggml_context, ContextDeleter> ctx_;
    std::vector<int32_t> slot_ids_;
    std::vector<float> gathered_in_;
    std::vector<float> gathered_out_;
};

}  // namespace moe
