from .classification import classification_metrics as classification_metrics
from .classification import perplexity as perplexity
from .generation import generation_metrics as generation_metrics
from .generation import generation_signature as generation_signature
from .translation import Score as Score
from .translation import corpus_scores as corpus_scores
