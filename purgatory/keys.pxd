cpdef check_key(key)
