// The sizes that slots come in, and how many of each an arena gets. Pure arithmetic.
//
// A model of mixed quantisation has experts of several sizes. With slots of one size the smaller ones would waste the
// difference; with a class of slots for each size they do not, and still any slot holds any expert that is no larger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moe {

// Experts of one size: a class, or one block of the model.
struct ExpertSize {
    uint64_t slot_bytes = 0;  // the room that one takes
    uint32_t experts = 0;
};

class SlotClasses {
public:
    // Every class is a region of its own, and a layer whose experts lie in several is multiplied by in several calls.
    // So sizes beyond the fourth are joined with the next larger one where that wastes least.
    static constexpr size_t kMost = 4;

    // The experts of each block, in any order.
    explicit SlotClasses(const std::vector<ExpertSize> & blocks);

    // Smallest first. An expert of class c fits the slots of class c and above.
    const std::vector<ExpertSize> & sizes() const { return sizes_; }
    size_t count() const { return sizes_.size(); }
    const ExpertSize & largest() const { return sizes_.back(); }
    uint32_t class_of(size_t block) const { return class_of_block_[block]; }

    uint64_t bytes(const std::vector<uint32_t> & slots) const;  // of so many slots per class
    uint64_t whole_bytes() const;                               // a slot for every expert

    // Slots per class that `arena_bytes` pay for: each class gets its share of the model's bytes, but the largest at
    // least `least_large` slots, because no others take its experts. What rounding leaves goes to the smaller classes.
    // Never more slots than experts.
    std::vector<uint32_t> split(uint64_t arena_bytes, uint32_t least_large) const;

    // Whether slots can hold so many experts of each class at once.
    bool hold(const std::vector<uint32_t> & slots, const std::vector<uint64_t> & experts) const;

    // The share, 0 to 1, of all experts' bytes that the slots can hold at once.
    double coverage(const std::vector<uint32_t> & slots) const;

private:
    std::vector<ExpertSize> sizes_;
    std::vector<uint32_t> class_of_block_;
};

}  // namespace moe
