"""Attention and its weights: functions on tensors. Masks, scores and measures are in packages of these names."""

from __future__ import annotations

from regard.ops.attend import AttentionOutput as AttentionOutput
from regard.ops.attend import attend as attend
from regard.ops.attend import weights as weights
from regard.ops.dropout import dropout as dropout
from regard.ops.gradient_matrix import GradientMatrix as GradientMatrix
from regard.ops.matrix import ScoreMatrix as ScoreMatrix
from regard.ops.matrix_sum import MatrixParts as MatrixParts
from regard.ops.matrix_sum import MatrixSum as MatrixSum
from regard.ops.rotary import rotary as rotary
from regard.ops.row_blocks import ComparisonMatrix as ComparisonMatrix
from regard.ops.row_blocks import ProductMatrix as ProductMatrix
from regard.ops.spectra import SVD as SVD
from regard.ops.spectra import Eigenpairs as Eigenpairs
from regard.ops.spectra import Spectra as Spectra
from regard.ops.weight_matrix import WeightMatrix as WeightMatrix
