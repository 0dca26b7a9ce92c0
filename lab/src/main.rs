//! The load test and the pictures; a stub for now.
fn main() {}
