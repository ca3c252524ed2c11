//! Workloads, arms, statistics, reports.
