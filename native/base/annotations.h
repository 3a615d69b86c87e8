// Macros for clang's thread-safety analysis; empty for other compilers.
#pragma once

#if defined(__clang__)
#define DI_ATTRIBUTE(x) __attribute__((x))
#else
#define DI_ATTRIBUTE(x)
#endif

#define DI_CAPABILITY(x) DI_ATTRIBUTE(capability(x))
#define DI_SCOPED_CAPABILITY DI_ATTRIBUTE(scoped_lockable)
#define DI_GUARDED_BY(x) DI_ATTRIBUTE(guarded_by(x))
#define DI_REQUIRES(...) DI_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define DI_EXCLUDES(...) DI_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define DI_ACQUIRE(...) DI_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define DI_RELEASE(...) DI_ATTRIBUTE(release_capability(__VA_ARGS__))
#define DI_RETURN_CAPABILITY(x) DI_ATTRIBUTE(lock_returned(x))
#define DI_NO_TSAN DI_ATTRIBUTE(disable_sanitizer_instrumentation)
#define DI_UNCHECKED DI_ATTRIBUTE(no_thread_safety_analysis)
