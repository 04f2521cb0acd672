from .esm import contacts as contacts
from .eviction import EvictingCache as EvictingCache
from .whisper import word_timestamps as word_timestamps
