"""Links whose rate and whose queues are limited, flat out, in virtual time: the C core and the C that chooses links."""
