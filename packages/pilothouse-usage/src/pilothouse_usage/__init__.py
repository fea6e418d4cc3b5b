"""What an agent spent, by sub-agent, tool and turn, and why its prompt cache was lost."""

from pilothouse_usage.cache_doctor import CacheDoctor as CacheDoctor
from pilothouse_usage.cache_doctor import CacheLoss as CacheLoss
from pilothouse_usage.cache_doctor import CacheLossCause as CacheLossCause
