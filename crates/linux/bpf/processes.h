/* The processes that a program looks at: the keys of `pids`. */
#pragma once
#include "kernel.h"

struct {
    MAP_NUMBER(type, HASH);
    MAP_NUMBER(max_entries, 16384);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u32);
} pids SEC(".maps");
