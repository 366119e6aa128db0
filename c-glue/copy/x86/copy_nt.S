/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: a copy of whole cache lines past the caches, for pages that nobody is
 * about to use. Survives a machine check on the source.
 *
 * Takes no lock and no FPU context. Any context.
 */
#include <linux/linkage.h>
#include <asm/asm.h>

/* User-mode Linux has no machine checks, and another exception table. */
#ifdef CONFIG_UML
# define MC_SAFE(from, to)
#else
# define MC_SAFE(from, to)	\
	_ASM_EXTABLE_TYPE(from, to, EX_TYPE_DEFAULT_MCE_SAFE)
#endif

/* Half a line; loads before stores, as a load may be all there is. */
#define HALF(offset)			  \
10:	movq	(offset)(%rsi), %r8	; \
11:	movq	(offset + 8)(%rsi), %r9	; \
12:	movq	(offset + 16)(%rsi), %r10	; \
13:	movq	(offset + 24)(%rsi), %r11	; \
	movnti	%r8, (offset)(%rdi)	; \
	movnti	%r9, (offset + 8)(%rdi)	; \
	movnti	%r10, (offset + 16)(%rdi)	; \
	movnti	%r11, (offset + 24)(%rdi)	; \
	MC_SAFE(10b, .Ldone)		; \
	MC_SAFE(11b, .Ldone)		; \
	MC_SAFE(12b, .Ldone)		; \
	MC_SAFE(13b, .Ldone)

/*
 * unsigned long ferry_copy_nt(void *dst, const void *src, unsigned long len)
 *
 * Both are aligned to 64 bytes, of which @len is a multiple and not 0. What is
 * stored is visible to whoever sees any store after this.
 *
 * Returns how many bytes are left, from the line that could not be read; or 0.
 */
SYM_FUNC_START(ferry_copy_nt)
	.p2align 4
.Lline:
	/*
	 * The source goes past the caches, too. Beyond its end it is but a
	 * hint, which never faults.
	 */
	prefetchnta 256(%rsi)
	HALF(0)
	HALF(32)
	addq	$64, %rsi
	addq	$64, %rdi
	subq	$64, %rdx
	jnz	.Lline
.Ldone:
	/* Non-temporal stores are not ordered by what comes later. */
	sfence
	movq	%rdx, %rax
	RET
SYM_FUNC_END(ferry_copy_nt)
