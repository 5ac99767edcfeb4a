"""x"""

from adapters.postgresql.log_capture import LogCapture as TriggerCapture
