/* Keeps the built module loadable on glibc 2.28 when it is built against a newer glibc.
 *
 * glibc 2.34 moved libpthread, libdl and librt into libc and gave their functions new default
 * versions; the old versions are still there and are the same code. Without these lines a wheel
 * built today demands glibc 2.34 for nothing. Forced into every C file by build.py (never under a
 * sanitizer); a name that a file does not use costs nothing. CI runs `auditwheel show`, which names
 * whatever is missing here.
 *
 * No includes: this comes before the file's own feature-test macros.
 */
#ifndef TN_GLIBC_FLOOR_H
#define TN_GLIBC_FLOOR_H

#if defined(__x86_64__)
#define TN_FLOOR_BASE "GLIBC_2.2.5"
#define TN_FLOOR_AT(x86_64_version) x86_64_version
#elif defined(__aarch64__)
/* The first release of this port: everything older has this version. */
#define TN_FLOOR_BASE "GLIBC_2.17"
#define TN_FLOOR_AT(x86_64_version) TN_FLOOR_BASE
#endif

#ifdef TN_FLOOR_BASE

#define TN_FLOOR_AS(name, old, version) __asm__(".symver " #name "," #old "@" version)
#define TN_FLOOR(name) TN_FLOOR_AS(name, name, TN_FLOOR_BASE)

TN_FLOOR(dladdr);
TN_FLOOR(dlclose);
TN_FLOOR(dlerror);
TN_FLOOR(dlopen);
TN_FLOOR(dlsym);
TN_FLOOR(dlvsym);
TN_FLOOR_AS(dlinfo, dlinfo, TN_FLOOR_AT("GLIBC_2.3.3"));

TN_FLOOR(pthread_attr_setguardsize);
TN_FLOOR(pthread_attr_setstacksize);
TN_FLOOR(pthread_barrier_destroy);
TN_FLOOR(pthread_barrier_init);
TN_FLOOR(pthread_barrier_wait);
TN_FLOOR(pthread_cancel);
TN_FLOOR(pthread_create);
TN_FLOOR(pthread_detach);
TN_FLOOR(pthread_getspecific);
TN_FLOOR(pthread_join);
TN_FLOOR(pthread_key_create);
TN_FLOOR(pthread_key_delete);
TN_FLOOR(pthread_kill);
TN_FLOOR(pthread_mutex_timedlock);
TN_FLOOR(pthread_mutex_trylock);
TN_FLOOR(pthread_mutexattr_destroy);
TN_FLOOR(pthread_mutexattr_init);
TN_FLOOR(pthread_mutexattr_setpshared);
TN_FLOOR(pthread_mutexattr_settype);
TN_FLOOR(pthread_once);
TN_FLOOR(pthread_rwlock_destroy);
TN_FLOOR(pthread_rwlock_init);
TN_FLOOR(pthread_rwlock_rdlock);
TN_FLOOR(pthread_rwlock_tryrdlock);
TN_FLOOR(pthread_rwlock_trywrlock);
TN_FLOOR(pthread_rwlock_unlock);
TN_FLOOR(pthread_rwlock_wrlock);
TN_FLOOR(pthread_setspecific);
TN_FLOOR(pthread_sigmask);
TN_FLOOR(pthread_spin_destroy);
TN_FLOOR(pthread_spin_init);
TN_FLOOR(pthread_spin_lock);
TN_FLOOR(pthread_spin_trylock);
TN_FLOOR(pthread_spin_unlock);
TN_FLOOR_AS(pthread_condattr_setclock, pthread_condattr_setclock, TN_FLOOR_AT("GLIBC_2.3.3"));
TN_FLOOR(pthread_condattr_setpshared);
TN_FLOOR_AS(pthread_getaffinity_np, pthread_getaffinity_np, TN_FLOOR_AT("GLIBC_2.3.4"));
TN_FLOOR_AS(pthread_setaffinity_np, pthread_setaffinity_np, TN_FLOOR_AT("GLIBC_2.3.4"));
TN_FLOOR_AS(pthread_getname_np, pthread_getname_np, TN_FLOOR_AT("GLIBC_2.12"));
TN_FLOOR_AS(pthread_setname_np, pthread_setname_np, TN_FLOOR_AT("GLIBC_2.12"));
TN_FLOOR_AS(pthread_mutex_consistent, pthread_mutex_consistent, TN_FLOOR_AT("GLIBC_2.12"));
TN_FLOOR_AS(pthread_mutexattr_setrobust, pthread_mutexattr_setrobust, TN_FLOOR_AT("GLIBC_2.12"));

TN_FLOOR(sem_destroy);
TN_FLOOR(sem_init);
TN_FLOOR(sem_post);
TN_FLOOR(sem_timedwait);
TN_FLOOR(sem_trywait);
TN_FLOOR(sem_wait);
TN_FLOOR(shm_open);
TN_FLOOR(shm_unlink);

/* Since glibc 2.38 <stdlib.h> sends these to versions that also read C23 binary constants, which we
 * never pass. */
TN_FLOOR_AS(__isoc23_strtol, strtol, TN_FLOOR_BASE);
TN_FLOOR_AS(__isoc23_strtoll, strtoll, TN_FLOOR_BASE);
TN_FLOOR_AS(__isoc23_strtoul, strtoul, TN_FLOOR_BASE);
TN_FLOOR_AS(__isoc23_strtoull, strtoull, TN_FLOOR_BASE);
TN_FLOOR_AS(__isoc23_sscanf, __isoc99_sscanf, TN_FLOOR_AT("GLIBC_2.7"));
TN_FLOOR_AS(__isoc23_fscanf, __isoc99_fscanf, TN_FLOOR_AT("GLIBC_2.7"));

#endif /* TN_FLOOR_BASE */
#endif
