//! Real programs as Debian ships them, under `busypoll run`: each does its work correctly, and its waits busy poll. One
//! table, run once for each plane.

#[path = "support/echo.rs"]
mod echo;
mod support;
#[path = "programs/table.rs"]
mod table;

use support::*;

/// The table under one plane; the cases after `long` take minutes together.
macro_rules! plane {
    ($name:ident: $($case:ident)+, long: $($long:ident)+) => {
        mod $name {
            $(
                #[test]
                fn $case() {
                    super::table::$case(stringify!($name));
                }
            )+
            $(
                #[test]
                #[ignore = "long: the whole table takes four minutes"]
                fn $long() {
                    super::table::$long(stringify!($name));
                }
            )+
        }
    };
}

plane! { kernel:
    redis nginx,
    long: sockperf_udp_ping_pong sockperf_tcp_ping_pong sockperf_under_load sockperf_throughput
    redis_saves_in_the_background memcached iperf3
    python_asyncio java_nio go_echo quickfix
}

// Go makes its system calls itself, so the preload library does not see its sockets.
plane! { stack:
    redis nginx,
    long: sockperf_udp_ping_pong sockperf_tcp_ping_pong sockperf_under_load sockperf_throughput
    redis_saves_in_the_background memcached iperf3
    python_asyncio java_nio quickfix
}
