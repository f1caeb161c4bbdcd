-- Writes the audit record of a repair outside contexts.
use_reserve()
audit(0)
return 1
