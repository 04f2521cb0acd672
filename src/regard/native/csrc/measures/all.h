// The list of all measures, and those of a call.

#pragma once

#include <memory>

#include "columns.h"
#include "divergence.h"
#include "mass.h"
#include "pooling.h"
#include "rows.h"
#include "topk.h"

namespace regard {

using MeasurePointer = std::unique_ptr<Measure>;

template <typename T>
MeasurePointer create(const MeasureCall& call, const Rows& rows) {
    return std::make_unique<T>(call, rows);
}

struct MeasureClass {
    const char* name;  // MeasureKind in library.py
    MeasurePointer (*create)(const MeasureCall&, const Rows&);
};

constexpr MeasureClass MEASURES[] = {
    {"ENTROPY", create<Entropy>},
    {"LSE", create<LogSumExp>},
    {"MAX", create<Max>},
    {"MEAN_DISTANCE", create<MeanDistance>},
    {"MASS", create<Mass>},
    {"DIAGONAL", create<Diagonal>},
    {"HISTOGRAM", create<DistanceHistogram>},
    {"TOPK", create<TopK>},
    {"DIVERGENCE", create<KLDivergence>},
    {"SELECT", create<Select>},
    {"RECEIVED", create<Received>},
    {"TRANSPOSED", create<TransposedProduct>},
    {"BLOCK_MEAN", create<BlockMean>},
    {"GROUP_POOL", create<GroupPool>},
};

// In the order of the call. One thread's.
inline std::vector<MeasurePointer> create_measures(const Call& call, const Rows& rows) {
    std::vector<MeasurePointer> measures;
    for (int64_t m = 0; m < call.measure_count; m++)
        measures.push_back(MEASURES[call.measures[m].kind].create(call.measures[m], rows));
    return measures;
}

// How many numbers of each row and key all measures have as factors.
inline int64_t count_factors(const std::vector<MeasurePointer>& measures) {
    int64_t count = 0;
    for (const MeasurePointer& measure : measures) count += measure->num_factors();
    return count;
}

}  // namespace regard
