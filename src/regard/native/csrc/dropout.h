// Which weights dropout keeps: a function of seed, head, row and key, the same forward and backward.

#pragma once

#include "call.h"
#include "simd.h"

namespace regard {

// SplitMix64's output function (Steele, Lea, Flood 2014).
inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// Of 2^32 random numbers, those below this one are dropped. At least one is kept, for the probability is below 1.
inline uint32_t dropout_threshold(const Call& call) {
    return static_cast<uint32_t>(call.dropout * 0x1p32);
}

// The probability with which a weight is kept, above 0 also where 1 - dropout rounds to 0 in float.
inline float keep_probability(const Call& call) {
    return static_cast<float>((0x1p32 - dropout_threshold(call)) / 0x1p32);
}

class DropoutRow {
  public:
    DropoutRow(const Call& call, int64_t b, int64_t h, int64_t i) : threshold(dropout_threshold(call)) {
        const uint64_t row = (b * call.matrix.heads + h) * call.matrix.queries + i;
        const uint64_t key = mix(call.seed + 0x9e3779b97f4a7c15 * (row + 1));
        low = static_cast<uint32_t>(key);
        high = static_cast<uint32_t>(key >> 32);
        for (int l = 0; l < LANES; l++) lane[l] = l;
    }

    // The weights from a key on, 0 where they are dropped. The 32-bit mixing steps are Wellons' lowbias32 (2018).
    Floats keep(Floats weights, int64_t key) const {
        UInts x = (lane + static_cast<uint32_t>(key)) * 0x9e3779b9u + low;
        x = (x ^ x >> 16) * 0x7feb352du;
        x = ((x ^ high) ^ x >> 15) * 0x846ca68bu;
        x ^= x >> 16;
        return x < threshold ? Floats{} : weights;
    }

  private:
    typedef uint32_t UInts __attribute__((vector_size(4 * LANES)));
    uint32_t threshold, low, high;
    UInts lane;
};

}  // namespace regard
