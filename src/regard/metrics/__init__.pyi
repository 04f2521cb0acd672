from .classification import classification_metrics as classification_metrics
from .classification import perplexity as perplexity
from .generation import diversity_scores as diversity_scores
from .generation import rouge_scores as rouge_scores
from .score import Score as Score
from .translation import corpus_scores as corpus_scores
