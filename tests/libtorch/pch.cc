// The precompiled header is made with this file; it needs one.
