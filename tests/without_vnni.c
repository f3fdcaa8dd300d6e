/* Preloaded, it makes a process and its children take this CPU for one of AVX2 alone: CPUID faults,
   and its answers lack AVX-512, VNNI and AMX, as the file CPUINFO does, which is read in place of
   /proc/cpuinfo. `make test-without-vnni` builds and uses it. */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static struct sigaction theirs; /* what the process itself asked for on SIGSEGV */
static int (*set_action)(int, const struct sigaction *, struct sigaction *);
static int (*open_file)(const char *, int, ...);

static void allow_cpuid(long allowed) { syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *at = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (info->si_code != SI_KERNEL || memcmp((void *)at[REG_RIP], "\x0f\xa2", 2)) {
        if (theirs.sa_handler == SIG_DFL || theirs.sa_handler == SIG_IGN)
            set_action(number, &theirs, NULL);
        else
            theirs.sa_sigaction(number, info, context);
        return;
    }
    unsigned leaf = at[REG_RAX], part = at[REG_RCX], a, b, c, d;
    allow_cpuid(1);
    __cpuid_count(leaf, part, a, b, c, d);
    allow_cpuid(0);
    if (leaf == 7 && part == 0) b &= ~0xd0230000u, c &= ~0x00005842u, d &= ~0x03c0010cu;
    if (leaf == 7 && part == 1) a &= ~0x00a00030u, d &= ~0x00080430u;
    at[REG_RAX] = a, at[REG_RBX] = b, at[REG_RCX] = c, at[REG_RDX] = d, at[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction ours = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    set_action = dlsym(RTLD_NEXT, "sigaction");
    open_file = dlsym(RTLD_NEXT, "open64");
    set_action(SIGSEGV, &ours, &theirs);
    allow_cpuid(0);
}

int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    if (number != SIGSEGV) return set_action(number, new, old);
    if (old) *old = theirs;
    if (new) theirs = *new;
    return 0;
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return open_file(strcmp(path, "/proc/cpuinfo") ? path : CPUINFO, flags, mode);
}
