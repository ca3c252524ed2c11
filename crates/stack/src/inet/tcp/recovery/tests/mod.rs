//! Recovery alone: against models, by examples, and in a simulated network with one flow.

mod board;
mod examples;
mod flow;
mod put_off;
mod rack;
mod sim;
