// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: selects the files whose TLB flushes migrc may defer, and flushes
 * before they may be written.
 *
 * While no task has a file open for writing its contents do not change: a
 * mapping of it reads the same in the old folio and in the new one. When a
 * task opens it for writing, all stale translations of it are flushed, and no
 * flush of it is deferred until the task has closed it (O3).
 *
 * Files are identified by a hash of their mapping. A bucket counts the groups
 * that have a file of it, from the time a translation was cleared until the
 * group is flushed and gone. AS_FERRY_UNFLUSHED is set in a mapping before the
 * first flush for it may be deferred, and stays set.
 *
 * The migrating task sets the flag, raises the count, and then checks that
 * i_writecount is not above 0. The opening task raises i_writecount, and then
 * reads flag and count. Both have a full barrier in between, so one of the two
 * sees the other. An opening task that reads a count of 0 has nothing to wait
 * for: a group lowers the count with release order, after its flush.
 *
 * A batch that is not retained yet detects the opening by @opens of the
 * bucket. It reads @opens when it raises the count, before it reads
 * i_writecount, and again before it defers its flush. The opening task raises
 * @opens after i_writecount: if @opens has changed, the batch is flushed at
 * once, before its folios are unlocked and so before they can be written.
 *
 * A batch is in flight from its second read until its group is on the ledger,
 * or is flushed. It may be preempted meanwhile for an unbounded time, so no
 * task waits for it. The opening task recalls it instead: it flushes the CPUs
 * of the batch, and frees the folios that the batch has kept. A recalled batch
 * keeps no more folios, and flushes before it frees the next one, or ends.
 *
 * ferry_recall_batches() recalls all batches. Batches that are not in flight
 * yet detect this in the same way, by a number of its own.
 *
 * Lock order, inside the lock of the ledger (rust/migrc/group/ledger.rs):
 *
 * 1. ferry_batches_lock, which protects the list of batches in flight;
 * 2. ferry_group.lock.
 *
 * Both are taken in process context only, and never with a PTL held. A group
 * on the list is not freed, and its CPUs and files do not change: its task
 * removes it from the list before it retains or frees it. Files are checked
 * with the PTL held, by a task that has the folio locked. The opening task may
 * sleep.
 */
#include <linux/cleanup.h>
#include <linux/export.h>
#include <linux/ferry_group.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/magic.h>
#include <linux/pagemap.h>
#include <linux/spinlock.h>

bool ferry_migrc_files __read_mostly = true;

/* Groups of the batches in flight. */
static DEFINE_SPINLOCK(ferry_batches_lock);
static LIST_HEAD(ferry_batches);

/* Number of recalls of all batches. Written under the lock. */
static unsigned int ferry_recalls;

/*
 * @groups: number of unflushed groups with a file of this bucket
 * @opens: raised by tasks that open one of these files
 */
static struct ferry_files {
	atomic_t groups;
	atomic_t opens;
} ferry_files[1 << FERRY_FILE_BITS];

static unsigned int ferry_file_of(const struct address_space *mapping)
{
	return hash_ptr(mapping, FERRY_FILE_BITS);
}

/* Returns the sum of @opens of a group's buckets; it wraps. */
static unsigned int ferry_count_opens(const struct ferry_unmaps *unmaps)
{
	unsigned int file, sum = 0;

	for_each_set_bit(file, unmaps->files, 1 << FERRY_FILE_BITS)
		sum += atomic_read(&ferry_files[file].opens);
	return sum;
}

/* Notes that a translation of a file was cleared. A full barrier follows. */
static void ferry_note_file(struct ferry_unmaps *unmaps, unsigned int file)
{
	if (!__test_and_set_bit(file, unmaps->files)) {
		atomic_inc(&ferry_files[file].groups);
		unmaps->opens += atomic_read(&ferry_files[file].opens);
	}
	/* Pairs with the full barrier of get_write_access(), see above. */
	smp_mb();
}

/* Removes the files of a group after its flush. */
void ferry_forget_files(struct ferry_unmaps *unmaps)
{
	unsigned int file;

	for_each_set_bit(file, unmaps->files, 1 << FERRY_FILE_BITS)
		atomic_fetch_dec_release(&ferry_files[file].groups);
}

/* Returns whether a group may have a file of this bucket. */
bool ferry_group_has_file(const struct ferry_group *group, unsigned int file)
{
	return test_bit(file, group->unmaps.files);
}

/* Returns the number for ferry_batch_begins(). Called before a batch unmaps. */
unsigned int ferry_batch_number(void)
{
	return READ_ONCE(ferry_recalls);
}

/*
 * Puts a batch in flight before its flush is deferred, when its group has all
 * CPUs. Returns false if the batch must be flushed now.
 *
 * A task that recalls batches writes the state that the batch checks
 * (ferry_recalls, ferry_disabled, ferry_files.opens) before it takes the lock,
 * or under it. So either the batch reads the new value, or the task finds the
 * batch on the list.
 */
bool ferry_batch_begins(struct ferry_group *group)
{
	guard(spinlock)(&ferry_batches_lock);
	/* See ferry_retention_disable(). */
	if (group->number != ferry_recalls || READ_ONCE(ferry_disabled) ||
	    group->unmaps.opens != ferry_count_opens(&group->unmaps))
		return false;
	list_add_tail(&group->batch, &ferry_batches);
	return true;
}

/*
 * Removes a batch from the batches in flight, when its group is about to be
 * retained. Called by the owner of the group with the ledger locked, so a task
 * that searches the ledger next finds the group. Returns false if the group
 * has no folios, as after a recall; the batch then stays in flight until it is
 * flushed.
 */
bool ferry_batch_settles(struct ferry_group *group)
{
	guard(spinlock)(&ferry_batches_lock);
	if (!group->nr_pages)
		return false;
	list_del_init(&group->batch);
	return true;
}

/*
 * Removes a batch from the batches in flight after its flush, if it is in
 * flight. Called by the owner of the group. Not called before the flush: a
 * task that recalled the batch may not have flushed yet, and other tasks must
 * find the batch until a flush is complete.
 */
void ferry_batch_flushed(struct ferry_group *group)
{
	guard(spinlock)(&ferry_batches_lock);
	list_del_init(&group->batch);
}

/*
 * Takes the folios that a batch in flight has kept, and adds the flush that
 * they wait for to the pending flush of this task. Also for a batch that was
 * recalled before, since the flush of the task that recalled it may not be
 * complete.
 */
static void ferry_recall(struct ferry_group *group, struct list_head *folios)
{
	lockdep_assert_held(&ferry_batches_lock);
	ferry_group_owe(group);
	guard(spinlock)(&group->lock);
	group->recalled = true;
	list_splice_tail_init(&group->folios, folios);
	group->nr_pages = 0;
}

/*
 * Flushes for recalled batches, and frees the folios that they had kept. Until
 * the folios are free they count as a group, even when their groups are gone,
 * see ferry_help_before_oom().
 */
static void ferry_free_recalled(struct list_head *folios, enum ferry_drain why)
{
	unsigned int nr;

	ferry_flush_owed();
	nr = ferry_free_folios(folios);
	ferry_count_migrc(FERRY_MIGRC_DEFERRED, nr);
	ferry_count_drained(why, nr);
	atomic_fetch_dec_release(&ferry_groups);
}

/*
 * Recalls all batches. On return, all translations cleared before the call are
 * flushed, will be flushed at once, or are found by a later drain. May sleep.
 */
void ferry_recall_batches(enum ferry_drain why)
{
	struct ferry_group *group;
	LIST_HEAD(folios);

	atomic_inc(&ferry_groups);
	scoped_guard(spinlock, &ferry_batches_lock) {
		WRITE_ONCE(ferry_recalls, ferry_recalls + 1);
		list_for_each_entry(group, &ferry_batches, batch)
			ferry_recall(group, &folios);
	}
	ferry_free_recalled(&folios, why);
}

/* Recalls the batches with a file of a bucket whose @opens was raised. */
static void ferry_recall_file(unsigned int file)
{
	struct ferry_group *group;
	LIST_HEAD(folios);

	atomic_inc(&ferry_groups);
	scoped_guard(spinlock, &ferry_batches_lock) {
		list_for_each_entry(group, &ferry_batches, batch) {
			if (ferry_group_has_file(group, file))
				ferry_recall(group, &folios);
		}
	}
	ferry_free_recalled(&folios, FERRY_DRAIN_WRITE);
}

/*
 * Returns whether pages of the file change only while a task has it open for
 * writing. Excludes file systems that other hosts or servers may write, and
 * those that manage the space of the device as a file.
 */
static bool ferry_file_is_plain(const struct inode *inode)
{
	if (!S_ISREG(inode->i_mode) || IS_DAX(inode) || IS_SWAPFILE(inode) ||
	    IS_NOQUOTA(inode))
		return false;
	switch (inode->i_sb->s_magic) {
	case BTRFS_SUPER_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
	case EXT4_SUPER_MAGIC:
	case SQUASHFS_MAGIC:
	case XFS_SUPER_MAGIC:
		return true;
	}
	return false;
}

/*
 * Returns the reason to flush the folio of a file at once, or 0 if the flush
 * may be deferred until the file is opened for writing. The folio is locked.
 */
unsigned int ferry_check_file(struct ferry_unmaps *unmaps,
			      const struct folio *folio)
{
	struct address_space *mapping = folio->mapping;
	struct inode *inode = mapping ? mapping->host : NULL;

	if (!READ_ONCE(ferry_migrc_files) || !inode ||
	    inode->i_mapping != mapping || !ferry_file_is_plain(inode))
		return BIT(FERRY_REFUSED_FILE);
	/*
	 * Checked first, so that other tasks do not flush for a batch that is
	 * not deferred.
	 */
	if (atomic_read(&inode->i_writecount) > 0)
		return BIT(FERRY_REFUSED_WRITTEN);
	if (!test_bit(AS_FERRY_UNFLUSHED, &mapping->flags))
		set_bit(AS_FERRY_UNFLUSHED, &mapping->flags);
	ferry_note_file(unmaps, ferry_file_of(mapping));
	if (atomic_read(&inode->i_writecount) > 0)
		return BIT(FERRY_REFUSED_WRITTEN);
	return 0;
}

/*
 * Called when a file may be written from now on: its i_writecount was raised.
 * On return no CPU reads an old folio of it. The cost is one load if no folio
 * of the file was ever eligible, and two if no flush is deferred. May sleep.
 */
void ferry_before_write(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;
	struct ferry_files *files;
	unsigned int file;

	might_sleep();
	/* After i_writecount was raised, by a value-returning atomic. */
	if (likely(!test_bit(AS_FERRY_UNFLUSHED, &mapping->flags)) ||
	    mapping != &inode->i_data || ferry_hook_disabled(FERRY_HOOK_FILE))
		return;
	file = ferry_file_of(mapping);
	files = &ferry_files[file];
	/*
	 * Pairs with the release in ferry_forget_files(): its group is
	 * flushed.
	 */
	if (!atomic_read_acquire(&files->groups))
		return;
	/*
	 * Pairs with ferry_batch_begins() through the lock that is taken next.
	 */
	atomic_inc(&files->opens);
	/*
	 * Before the drain: a batch leaves the list when its group is on the
	 * ledger.
	 */
	ferry_recall_file(file);
	ferry_migrc_drain_file(file);
}
EXPORT_SYMBOL(ferry_before_write);
