//! Recovery alone: against models, against the RFCs' examples, and in a simulated network of one flow.

mod examples;
mod flow;
mod sim;
