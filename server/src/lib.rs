//! A tower layer that limits callers with the same limiters as `forbear`.
