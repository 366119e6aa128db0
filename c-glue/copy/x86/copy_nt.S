/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ferry: non-temporal copy of whole cache lines, for pages that are not used
 * soon. Survives a machine check on the source.
 *
 * Context: any. Takes no lock and no FPU context.
 */
#include <linux/linkage.h>
#include <asm/asm.h>

/* User-mode Linux has no machine checks, and a different exception table. */
#ifdef CONFIG_UML
# define MC_SAFE(from, to)
#else
# define MC_SAFE(from, to)	\
	_ASM_EXTABLE_TYPE(from, to, EX_TYPE_DEFAULT_MCE_SAFE)
#endif

/*
 * Copies half a line. Loads come before stores: if one faults, none is stored.
 */
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
 * Both pointers are aligned to 64 bytes, and @len is a multiple of 64 and not
 * 0. The copy is visible to any CPU that sees a later store of this CPU.
 *
 * Returns 0, or the number of bytes left, from the line that could not be
 * read.
 */
SYM_FUNC_START(ferry_copy_nt)
	.p2align 4
.Lline:
	/*
	 * The source bypasses the caches as well. Beyond its end the prefetch
	 * is a hint that never faults.
	 */
	prefetchnta 256(%rsi)
	HALF(0)
	HALF(32)
	addq	$64, %rsi
	addq	$64, %rdi
	subq	$64, %rdx
	jnz	.Lline
.Ldone:
	/* Later stores do not order non-temporal stores. */
	sfence
	movq	%rdx, %rax
	RET
SYM_FUNC_END(ferry_copy_nt)
