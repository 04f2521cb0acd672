// Which keys a query may attend to, 64 at a time.

#pragma once

#include <algorithm>
#include <cstring>

#include "call.h"

namespace regard {

constexpr int64_t KEY_BLOCK = 64;  // keys whose mask is one word
constexpr int MAX_MASK_DEPTH = 16;

struct KeyRange {
    int64_t start, stop;
};

inline uint64_t bits_of_range(int64_t start, int64_t stop) {
    start = std::max<int64_t>(start, 0);
    stop = std::min<int64_t>(stop, 64);
    if (start >= stop) return 0;
    return (~uint64_t{0} >> (64 - (stop - start))) << start;
}

// A sum that would overflow is the largest or smallest number, which is beyond every key.
inline int64_t add(int64_t a, int64_t b) {
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return b > 0 ? INT64_MAX : INT64_MIN;
    return sum;
}

// A range outside of which a mask allows no key, from those of its windows and spans.
//
// range_of: the range of a step; `everything` if it has none.
template <typename Function>
KeyRange combine_ranges(const Mask& mask, KeyRange everything, Function range_of) {
    KeyRange stack[MAX_MASK_DEPTH];
    int depth = 0;
    for (int64_t s = 0; s < mask.count; s++) {
        const MaskStep& step = mask.steps[s];
        if (step.kind == AND || step.kind == OR) {
            KeyRange b = stack[--depth], a = stack[--depth];
            stack[depth++] = step.kind == AND    ? KeyRange{std::max(a.start, b.start), std::min(a.stop, b.stop)}
                             : a.start >= a.stop ? b
                             : b.start >= b.stop ? a
                                                 : KeyRange{std::min(a.start, b.start), std::max(a.stop, b.stop)};
        } else if (step.kind == NOT) {
            stack[depth - 1] = everything;
        } else {
            stack[depth++] = range_of(step);
        }
    }
    return depth ? stack[0] : everything;
}

// How many keys a query may attend to at most.
inline int64_t count_visible(const Mask& mask, int64_t keys) {
    constexpr KeyRange everything{INT64_MIN, INT64_MAX};  // relative to the query's position
    const KeyRange range = combine_ranges(mask, everything, [&](const MaskStep& step) {
        if (step.kind != WINDOW) return everything;
        return KeyRange{step.left == UNLIMITED ? everything.start : -step.left,
                        step.right == UNLIMITED ? everything.stop : add(step.right, 1)};
    });
    int64_t count;
    if (__builtin_sub_overflow(range.stop, range.start, &count)) count = range.stop > range.start ? keys : 0;
    return std::clamp<int64_t>(count, 0, keys);
}

// A row of a mask: one query of one head.
class MaskRow {
  public:
    MaskRow(const Mask& mask, int64_t keys, int64_t batch, int64_t head, int64_t row, int64_t position)
        : mask(mask), keys(keys), batch(batch), head(head), row(row), position(position) {}

    // A range outside of which no key is allowed.
    KeyRange range() const {
        const KeyRange range = combine_ranges(mask, {0, keys}, [this](const MaskStep& step) { return range_of(step); });
        return {std::max<int64_t>(range.start, 0), std::min(range.stop, keys)};
    }

    // Bit j is whether key first + j is allowed; keys beyond the last are not.
    uint64_t bits(int64_t first) const {
        uint64_t stack[MAX_MASK_DEPTH];
        int depth = 0;
        for (int64_t s = 0; s < mask.count; s++) {
            const MaskStep& step = mask.steps[s];
            if (step.kind == NOT) {
                stack[depth - 1] = ~stack[depth - 1];
            } else if (step.kind == AND || step.kind == OR) {
                uint64_t b = stack[--depth], a = stack[--depth];
                stack[depth++] = step.kind == AND ? a & b : a | b;
            } else {
                stack[depth++] = bits_of(step, first);
            }
        }
        return (depth ? stack[0] : ~uint64_t{0}) & bits_of_range(0, keys - first);
    }

  private:
    KeyRange range_of(const MaskStep& step) const {
        if (step.kind == WINDOW)
            return {step.left == UNLIMITED ? 0 : add(position, -step.left),
                    step.right == UNLIMITED ? keys : add(position, step.right + 1)};
        if (step.kind == RANGES) return {integer(step.first), integer(step.second)};
        return {0, keys};
    }

    uint64_t bits_of(const MaskStep& step, int64_t first) const {
        if (step.kind == WINDOW || step.kind == RANGES) {
            KeyRange range = range_of(step);
            return bits_of_range(std::clamp(range.start, first, first + 64) - first,
                                 std::clamp(range.stop, first, first + 64) - first);
        }
        const int64_t count = std::min<int64_t>(64, keys - first);
        uint64_t bits = 0;
        if (step.kind == SAME_DOCUMENT) {
            const int64_t document = integer(step.first);
            const int64_t* ids = static_cast<const int64_t*>(step.second.data) + batch * step.second.batch;
            for (int64_t j = 0; j < count; j++)
                bits |= uint64_t{ids[(first + j) * step.second.column] == document} << j;
            return bits;
        }
        const uint8_t* allowed = static_cast<const uint8_t*>(step.first.data) + batch * step.first.batch +
                                 head * step.first.head + row * step.first.row + first * step.first.column;
        if (step.first.column == 0) return *allowed ? ~uint64_t{0} : 0;
        int64_t j = 0;
        if (step.first.column == 1) {
            for (; j + 8 <= count; j += 8) {  // which of eight bytes are not 0, gathered by a product
                uint64_t bytes;
                std::memcpy(&bytes, allowed + j, 8);
                const uint64_t highest = ((bytes & 0x7f7f7f7f7f7f7f7f) + 0x7f7f7f7f7f7f7f7f) | bytes;
                bits |= ((highest >> 7 & 0x0101010101010101) * 0x0102040810204080 >> 56) << j;
            }
        }
        for (; j < count; j++) bits |= uint64_t{allowed[j * step.first.column] != 0} << j;
        return bits;
    }

    int64_t integer(const Strided& of) const {
        if (of.data == nullptr) return 0;
        return static_cast<const int64_t*>(of.data)[batch * of.batch + head * of.head + row * of.row];
    }

    const Mask& mask;
    int64_t keys, batch, head, row, position;
};

}  // namespace regard
