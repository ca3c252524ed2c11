/* How much was not counted or reported, because a map or a ring was full. */
#pragma once
#include "kernel.h"

struct {
    MAP_NUMBER(type, ARRAY);
    MAP_NUMBER(max_entries, 1);
    MAP_TYPE(key, u32);
    MAP_TYPE(value, u64);
} lost SEC(".maps");

INLINE void count_lost(void) {
    u32 zero = 0;
    u64 *count = map_lookup(&lost, &zero);
    if (count)
        __sync_fetch_and_add(count, 1);
}
