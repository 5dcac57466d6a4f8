package counter

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// simple is the collation of every read and filter of ours: a key is its value, whatever a collection's default says.
var simple = &options.Collation{Locale: "simple"}

// database is a view of a database for our own writes: to the primary, acknowledged by a majority.
func database(client *mongo.Client, name string) *mongo.Database {
	return client.Database(name, options.Database().
		SetReadPreference(readpref.Primary()).SetWriteConcern(writeconcern.Majority()))
}

// equalKey looks for a key. It is {_id: {$eq: key}}, since a row may hold {$ne: null} for one, and {_id: key} where the type of
// the key leaves no other reading: that alone the server takes for a look at the _id, without planning a query for each update.
func equalKey(key bson.RawValue) bson.Raw {
	value := bsoncore.Value{Type: bsoncore.Type(key.Type), Data: key.Value}
	switch key.Type { //nolint:exhaustive // the others may be read as more than a value
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128, bson.TypeString, bson.TypeObjectID, bson.TypeBinary,
		bson.TypeDateTime, bson.TypeTimestamp, bson.TypeBoolean:
	default:
		return bson.Raw(bsoncore.NewDocumentBuilder().
			AppendDocument("_id", bsoncore.NewDocumentBuilder().AppendValue("$eq", value).Build()).Build())
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", value).Build())
}

// increment is the update of one counter document by one delta. A sum of zero moves nothing, but marks the key: the
// events that cancelled out may be the wrong ones.
func increment(d *Delta, stamp bson.ObjectID) mongo.WriteModel {
	update := bsoncore.NewDocumentBuilder()
	if d.moves() {
		inc := bsoncore.NewDocumentBuilder().AppendInt64(d.Counter.Target.Live, d.N).AppendInt64(d.Counter.TotalPath(), d.N)
		for _, s := range d.Recent {
			if s.N != 0 {
				inc.AppendInt64(d.Counter.Own(FieldRecent)+"."+s.Name(), s.N)
			}
		}
		update.AppendDocument("$inc", inc.Build())
	}
	if d.Counter.Target.Upsert {
		update.AppendDocument("$set", bsoncore.NewDocumentBuilder().
			AppendBoolean(d.Counter.Own(FieldTouched), true).AppendObjectID(d.Counter.Own(FieldStamp), stamp).Build())
	}
	return mongo.NewUpdateOneModel().SetFilter(equalKey(d.Key)).SetUpdate(bson.Raw(update.Build())).
		SetUpsert(d.Counter.Target.Upsert).SetCollation(simple)
}

// marksOnly reports whether a delta has nothing to write into the counter document: it is marked elsewhere.
func marksOnly(d *Delta) bool { return !d.moves() && !d.Counter.Target.Upsert }
